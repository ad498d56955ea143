import { spawn } from 'node:child_process'
import { appendFileSync, closeSync, mkdirSync, openSync, readdirSync, statSync } from 'node:fs'
import { waitUntil } from '../../model/poll.ts'
import { baseEnvironment, commandExists, run } from '../host/process.ts'
import { isSupervised, isTreeRunning, readTreeLog, treeLog } from './control.ts'
import type { TreeState } from './driver.ts'
import type { SupervisorPaths } from './service-directory.ts'
import {
  isServiceSupervisor,
  killUntilGone,
  listMarkedProcesses,
  listS6Processes,
  listServiceProcesses,
  terminateOrphans,
} from './tree-process.ts'

/**
 * The limit of s6-svscan, which counts a service and its log separately. s6 2.13 (Debian 13) keeps 700 bytes for each of
 * them on the stack, whether or not it exists, so the usual stack of 8 MB has room for no more than 12,000.
 */
export const maxServices = 10_000
const startTimeoutSeconds = 15
const logTimeoutSeconds = 5

/**
 * Starts the supervision tree unless it runs. If two processes start it at once, s6's lock makes one of them give up.
 */
export async function ensureTree(paths: SupervisorPaths): Promise<void> {
  mkdirSync(paths.treeDirectory, { recursive: true, mode: 0o700 })
  mkdirSync(paths.logDirectory, { recursive: true, mode: 0o700 })
  if (isTreeRunning(paths)) return
  if (!commandExists('s6-svscan')) throw new Error('s6 is not installed: apt-get install s6')
  const services = listServiceNames(paths).map((name) => `${paths.treeDirectory}/${name}`)
  // Supervisors that outlived a killed s6-svscan do not write their status again.
  const survivors = services.filter(isSupervised)
  const startedAtMs = Date.now()
  const tree = spawnTree(paths)
  const isBack = (service: string) =>
    isSupervised(service) && (survivors.includes(service) || hasFreshStatus(service, startedAtMs))
  const isUp = () => isTreeRunning(paths) && services.every(isBack)
  await waitUntil(() => isUp() || tree.hasFailed(), startTimeoutSeconds)
  if (!isUp()) throw new Error(`start the supervision tree: ${describeMissing()}`)

  function describeMissing(): string {
    const missing = services.filter((service) => !isBack(service)).length
    const what = isTreeRunning(paths) ? `${missing} of ${services.length} services are not supervised` : 'not running'
    return `${what} after ${Math.round((Date.now() - startedAtMs) / 1000)} s${readTreeLog(paths)}`
  }
}

/** With this code, s6-svscan leaves the tree to another one that runs. */
const alreadyRunningCode = 100

function spawnTree(paths: SupervisorPaths): { hasFailed(): boolean } {
  const log = openSync(treeLog(paths), 'a', 0o600)
  const child = spawn('s6-svscan', ['-c', String(maxServices), paths.treeDirectory], {
    // A separate session keeps the tree alive on Ctrl-C and when this process ends.
    detached: true,
    stdio: ['ignore', log, log],
    env: baseEnvironment,
    cwd: '/',
  })
  let hasFailed = false
  const end = (how: string) => {
    hasFailed = true
    recordEnd(paths, how)
  }
  child.on('error', ({ message }) => end(`could not be started: ${message}`))
  child.on('exit', (code, signal) => {
    if (signal !== null) end(`was ended by ${signal}`)
    else if (code !== 0 && code !== alreadyRunningCode) end(`exited with ${code}`)
  })
  child.unref()
  closeSync(log)
  return { hasFailed: () => hasFailed }
}

/** Records what a killed process cannot record itself. */
function recordEnd(paths: SupervisorPaths, how: string): void {
  try {
    appendFileSync(treeLog(paths), `${new Date().toISOString()} s6-svscan ${how}\n`)
  } catch {} // the home was deleted
}

// After a reboot there is an old status file until s6-supervise has written a new one. Without waiting for that, a
// process that no longer exists would be reported as up.
function hasFreshStatus(directory: string, startedAtMs: number): boolean {
  const status = statSync(`${directory}/supervise/status`, { throwIfNoEntry: false })
  // File times are truncated to the tick of the kernel's clock, at most 10 ms.
  return status !== undefined && status.mtimeMs >= startedAtMs - 10
}

export function listServiceNames(paths: SupervisorPaths): string[] {
  return readdirSync(paths.treeDirectory).filter((entry) => !entry.startsWith('.'))
}

export function inspectTree(paths: SupervisorPaths): TreeState {
  if (!isTreeRunning(paths)) return { is: 'down' }
  const found = listS6Processes(paths).find((process) => process.name === 's6-svscan')
  return found ? { is: 'up', pid: found.pid } : { is: 'down' }
}

/** Ends every service and then the tree. Services stay wanted, so the next `ensureTree` starts them again. */
export async function stopTree(paths: SupervisorPaths, timeoutSeconds: number): Promise<void> {
  const sessions = new Set(listMarkedProcesses(paths).map((found) => found.session))
  const tree = inspectTree(paths)
  if (tree.is === 'up') await run('s6-svscanctl', ['-t', paths.treeDirectory])
  terminateOrphans(paths, tree.is === 'up' ? tree.pid : undefined)
  const inTime = await waitUntil(() => !listS6Processes(paths).some(isServiceSupervisor), timeoutSeconds)
  // Children that a service left behind hold its log open. Once they are gone, the loggers write the rest and end.
  if (inTime && (await killUntilGone(() => listServiceProcesses(paths, sessions)))) {
    if (await waitUntil(() => listS6Processes(paths).length === 0, logTimeoutSeconds)) return
  }
  const gone = await killUntilGone(() => [...listS6Processes(paths), ...listServiceProcesses(paths, sessions)])
  if (!gone) throw new Error(`stop the supervision tree in ${paths.treeDirectory}: processes survive SIGKILL`)
}
