// Starts the control plane in the background: a process in a session of its own that logs to a file of the home.
import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync, readFileSync, statSync } from 'node:fs'
import { CommandError, InterruptedError } from '../cli/errors.ts'
import { type Home, openHome } from '../drivers/host/home.ts'
import { withLock } from '../drivers/host/lock.ts'
import { mountPool } from '../drivers/storage/mount.ts'
import { waitUntil } from '../model/poll.ts'
import { type Config, inheritedEnvironment } from './config.ts'
import { launcher } from './install.ts'
import { controlPlaneLog, plainLine } from './log.ts'
import type { Addresses } from './startup.ts'
import { findAnsweringPlatform } from './status.ts'
import { stopSignal } from './stop.ts'

/** A first start on a slow and busy machine takes two minutes, most of it for copying PostgreSQL. */
const startTimeoutSeconds = 300
const stopTimeoutSeconds = 30
const shownLogLines = 15

export interface Detached {
  /** False if the platform answered before. */
  isStarted: boolean
  addresses: Addresses
}

/** Returns when the API answers. Another caller waits for this one, and then finds that the platform runs. */
export async function upDetached(config: Config): Promise<Detached> {
  await mountPool(config.home)
  const home = await openHome(config.home, { uidBase: config.uidBase })
  const stopping = stopSignal()
  return withLock(
    // Nobody else can open files there, and hold the lock.
    `${home.cache}/up.lock`,
    async () => {
      const found = await findAnsweringPlatform(home)
      if (found) return { isStarted: false, addresses: found }
      return { isStarted: true, addresses: await start(home, stopping) }
    },
    startTimeoutSeconds + stopTimeoutSeconds,
  )
}

async function start(home: Home, stopping: Promise<NodeJS.Signals>): Promise<Addresses> {
  const file = controlPlaneLog(home)
  const logStart = statSync(file, { throwIfNoEntry: false })?.size ?? 0
  const { child, findEnd } = spawnControlPlane(file)
  let isCancelled = false
  stopping.then(() => {
    isCancelled = true
  })
  let found: Addresses | undefined
  await waitUntil(async () => {
    found = await findAnsweringPlatform(home)
    return found !== undefined || findEnd() !== undefined || isCancelled
  }, startTimeoutSeconds)
  if (found && !isCancelled) return found
  const end = findEnd() ?? `did not answer within ${startTimeoutSeconds} s and was ended`
  await endProcess(child, findEnd)
  if (isCancelled) throw new InterruptedError('The start was cancelled; "./berth down" stops what runs already.')
  throw new CommandError(`the control plane ${end}; ${file} ends with:`, { details: readLogEnd(file, logStart) })
}

function spawnControlPlane(file: string) {
  const log = openSync(file, 'a', 0o600)
  // The working directory stays, because settings may contain relative paths.
  const options = { detached: true, env: inheritedEnvironment() }
  const child = spawn(launcher, ['up', '--log-file'], { ...options, stdio: ['ignore', log, log] })
  closeSync(log)
  child.unref()
  let end: string | undefined
  child.once('error', (error) => {
    end = `cannot be started: ${error.message}`
  })
  child.once('exit', (code, signal) => {
    end = signal ? `was ended by ${signal}` : `exited with code ${code}`
  })
  return { child, findEnd: () => end }
}

async function endProcess(child: ChildProcess, findEnd: () => string | undefined): Promise<void> {
  for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
    child.kill(signal)
    if (await waitUntil(() => findEnd() !== undefined, stopTimeoutSeconds)) return
  }
}

/** Only what this start has written: the file also has the log of earlier ones. */
function readLogEnd(file: string, from: number): string[] {
  const lines = readFileSync(file).subarray(from).toString().trimEnd().split('\n')
  return lines.slice(-shownLogLines).map((line) => {
    const { time, text } = plainLine(line)
    return `${time}${text}`
  })
}
