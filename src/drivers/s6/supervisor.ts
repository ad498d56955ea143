import { existsSync, mkdirSync, readdirSync, renameSync, type Stats, statSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { waitUntil } from '../../model/poll.ts'
import type { Micros } from '../../model/time.ts'
import { readTextIfPresent } from '../host/file.ts'
import { run } from '../host/process.ts'
import { findProcess, isStopped, killProcess } from '../host/process-list.ts'
import {
  clearDown,
  clearPendingChange,
  defaultStopTimeoutSeconds,
  ensureDefinition,
  ensureFirstDefinition,
  findEnd,
  hasPendingChange,
  hiddenDirectory,
  isMarkedDown,
  markDown,
  renderDefinition,
  type ServicePlace,
  type ServiceSpec,
  serviceDirectory,
} from './service-directory.ts'
import { type ProcessStatus, readStatus } from './status.ts'
import {
  ensureTree,
  inspectTree,
  isSupervised,
  killUntilGone,
  listServiceNames,
  processesOfService,
  rescanTree,
  resumeSupervision,
  stopTree,
  type TreeState,
  tellSupervisor,
  treeAnswers,
} from './tree.ts'

export type ServiceState = { is: 'absent' } | (ProcessStatus & { ended?: boolean })

/** Keeps processes alive. They do not depend on the life of whoever asked for them. */
export interface Supervisor {
  ensureTree(): Promise<void>
  inspectTree(): TreeState
  stopTree(options?: { timeoutSeconds?: number }): Promise<void>
  /** Afterwards the service is supervised, wanted up, and runs by this spec; a changed spec means a restart. */
  ensureService(name: string, spec: ServiceSpec): Promise<void>
  startService(name: string): Promise<void>
  /** Stays stopped, also over a reboot, until it is started or ensured again. */
  stopService(name: string, options?: { timeoutSeconds?: number }): Promise<void>
  restartService(name: string): Promise<void>
  signalService(name: string, signal: keyof typeof signalLetters): Promise<void>
  inspectService(name: string): Promise<ServiceState>
  listServices(): string[]
  /** Nothing of it is left: no process, no definition, no log. */
  removeService(name: string): Promise<void>
  /** The last lines, oldest first, each with its time in front. */
  readLog(name: string, lines: number): string[]
}

export function s6Supervisor(place: ServicePlace): Supervisor {
  return {
    ensureTree: () => ensureTree(place),
    inspectTree: () => inspectTree(place),
    stopTree: ({ timeoutSeconds = 30 } = {}) => stopTree(place, timeoutSeconds),
    ensureService: (name, spec) => ensureService(place, name, spec),
    startService: (name) => startService(place, name),
    stopService: (name, options = {}) => stopService(place, name, options.timeoutSeconds),
    restartService: (name) => restartService(place, name),
    signalService: (name, signal) => signalService(place, name, signal),
    inspectService: (name) => inspectService(place, name),
    listServices: () => listServiceNames(place).sort(),
    removeService: (name) => removeService(place, name),
    readLog: (name, lines) => readLog(place, name, lines),
  }
}

const signalLetters = {
  SIGALRM: 'a',
  SIGABRT: 'b',
  SIGQUIT: 'q',
  SIGHUP: 'h',
  SIGKILL: 'k',
  SIGTERM: 't',
  SIGINT: 'i',
  SIGUSR1: '1',
  SIGUSR2: '2',
  SIGSTOP: 'p',
  SIGCONT: 'c',
  SIGWINCH: 'y',
} as const

async function ensureService(place: ServicePlace, name: string, spec: ServiceSpec): Promise<void> {
  if (!treeAnswers(place)) throw new Error(`start service ${name}: the supervision tree is not running`)
  const definition = renderDefinition(place, name, spec)
  // It appeared whole, so that somebody else removed what it lacks; s6 does not take up the half of a service again.
  if (existsSync(serviceDirectory(place, name)) && !existsSync(`${serviceDirectory(place, name)}/log`)) {
    await removeService(place, name)
  }
  mkdirSync(`${place.logDirectory}/${name}`, { recursive: true, mode: 0o700 })
  if (spec.once) {
    ensureFirstDefinition(place, name, definition)
    await ensureSupervised(place, name)
    return resumeStopped(place, name)
  }
  const isNew = !existsSync(serviceDirectory(place, name))
  ensureDefinition(place, name, definition)
  await ensureSupervised(place, name)
  // It was started as soon as it was there, and may have ended for good by now: that is no reason to start it again.
  if (isNew) return
  if (hasPendingChange(place, name)) {
    await restartService(place, name)
    clearPendingChange(place, name)
    return
  }
  await resumeStopped(place, name)
  const state = await inspectService(place, name)
  if (isMarkedDown(place, name) || (state.is !== 'absent' && !state.wanted)) await startService(place, name)
}

async function ensureSupervised(place: ServicePlace, name: string): Promise<void> {
  const directory = serviceDirectory(place, name)
  const isReady = () =>
    isSupervised(directory) && isSupervised(`${directory}/log`) && existsSync(`${directory}/supervise/status`)
  if (isReady()) return
  rescanTree(place, 'a')
  if (await waitUntil(isReady, 5)) return
  resumeSupervision(place)
  if (!(await waitUntil(isReady, 10))) throw new Error(`supervise service ${name}: s6 did not take it up`)
}

/**
 * Whoever stopped a process with a signal may be gone. One that reads the log and stands still blocks the service as soon
 * as the pipe is full, and a supervisor that does takes no notice of the end of what it watches.
 */
async function resumeStopped(place: ServicePlace, name: string): Promise<void> {
  const directory = serviceDirectory(place, name)
  for (const part of [directory, `${directory}/log`]) {
    const status = await readStatus(part)
    if (status?.is !== 'up') continue
    if (isStopped(status.pid)) killProcess(status.pid, 'SIGCONT')
    if (!findProcess(status.pid)) resumeSupervision(place)
  }
}

async function startService(place: ServicePlace, name: string): Promise<void> {
  clearDown(place, name)
  await ensureSupervised(place, name)
  control(place, name, 'u')
}

async function stopService(place: ServicePlace, name: string, timeoutSeconds?: number): Promise<void> {
  if (!existsSync(serviceDirectory(place, name))) return
  markDown(place, name)
  await bringDown(place, name, timeoutSeconds)
}

// Down and up rather than the restart of s6, which waits a second and never follows its signal with SIGKILL.
async function restartService(place: ServicePlace, name: string): Promise<void> {
  await bringDown(place, name)
  await startService(place, name)
}

async function signalService(place: ServicePlace, name: string, signal: keyof typeof signalLetters): Promise<void> {
  // By a program: it takes longer than the signal, and whoever asked goes on as if that had arrived.
  await run('s6-svc', [`-${signalLetters[signal]}`, serviceDirectory(place, name)])
}

function control(place: ServicePlace, name: string, command: string): void {
  tellSupervisor(serviceDirectory(place, name), command)
}

async function bringDown(place: ServicePlace, name: string, timeoutSeconds?: number): Promise<void> {
  await killRemains(place, name, await endMain(place, name, timeoutSeconds))
}

/** Ends its main process and answers the session that this was the leader of. */
async function endMain(place: ServicePlace, name: string, timeoutSeconds?: number): Promise<number | undefined> {
  const before = await inspectService(place, name)
  if (isSupervised(serviceDirectory(place, name))) {
    // A second more than s6 waits before its SIGKILL, so that its own comes first unless the caller is in a hurry.
    await takeDown(place, name, timeoutSeconds ?? stopTimeoutSeconds(place, name) + 1)
  }
  return before.is === 'up' ? before.pid : undefined
}

async function takeDown(place: ServicePlace, name: string, timeoutSeconds: number): Promise<void> {
  control(place, name, 'd')
  const isDown = async () => {
    const state = await inspectService(place, name)
    return state.is === 'absent' || (state.is === 'down' && !state.wanted && !state.finishing)
  }
  if (await waitUntil(isDown, timeoutSeconds)) return
  resumeSupervision(place)
  control(place, name, 'k')
  if (!(await waitUntil(isDown, 10))) throw new Error(`stop service ${name}: it survives SIGKILL`)
}

function stopTimeoutSeconds(place: ServicePlace, name: string): number {
  const milliseconds = readTextIfPresent(`${serviceDirectory(place, name)}/timeout-kill`)
  return milliseconds === undefined ? defaultStopTimeoutSeconds : Number(milliseconds) / 1000
}

// The main process has ended; children that it left behind would hold files, ports and the log.
async function killRemains(place: ServicePlace, name: string, session: number | undefined): Promise<void> {
  const gone = await killUntilGone(() => processesOfService(place, name, session))
  if (!gone) throw new Error(`stop service ${name}: its processes survive SIGKILL`)
}

async function inspectService(place: ServicePlace, name: string): Promise<ServiceState> {
  const directory = serviceDirectory(place, name)
  const entry = statSync(directory, { throwIfNoEntry: false })
  if (entry === undefined) return { is: 'absent' }
  const end = findEnd(place, name)
  if (end) return { is: 'down', wanted: false, ended: true, ...end, since: mtimeOf(entry) }
  const status = isSupervised(directory) ? await readStatus(directory) : undefined
  return status ?? { is: 'down', wanted: !isMarkedDown(place, name), since: mtimeOf(entry) }
}

function mtimeOf(entry: Stats): Micros {
  return BigInt(Math.trunc(entry.mtimeMs)) * 1000n
}

async function removeService(place: ServicePlace, name: string): Promise<void> {
  const directory = serviceDirectory(place, name)
  const log = `${place.logDirectory}/${name}`
  let session: number | undefined
  if (existsSync(directory)) {
    markDown(place, name)
    session = await endMain(place, name)
    // Unless somebody else who removes it was faster.
    if (existsSync(directory)) renameSync(directory, hiddenDirectory(place, 'removed', name))
  }
  // Also what an earlier removal or creation left when it was interrupted.
  const hidden = hiddenDirectoriesOf(place, name)
  // The log is there before all else and goes last: to look at every process takes long.
  if (hidden.length === 0 && !existsSync(log)) return
  for (const one of hidden) await unsupervise(place, one)
  await killRemains(place, name, session)
  // A busy disk takes its time, and others wait for an answer meanwhile.
  for (const path of [...hidden, log]) await rm(path, { recursive: true, force: true })
}

function hiddenDirectoriesOf(place: ServicePlace, name: string): string[] {
  if (!existsSync(place.treeDirectory)) return []
  return readdirSync(place.treeDirectory)
    .filter((entry) => entry.startsWith(`.removed~${name}~`) || entry.startsWith(`.new~${name}~`))
    .map((entry) => `${place.treeDirectory}/${entry}`)
}

async function unsupervise(place: ServicePlace, directory: string): Promise<void> {
  const parts = [directory, `${directory}/log`]
  const isFree = () => !parts.some(isSupervised)
  if (isFree()) return
  if (treeAnswers(place)) rescanTree(place, 'an')
  if (await waitUntil(isFree, 1)) return
  // Left over from a tree that was killed: the new one does not know them, so they are told directly.
  resumeSupervision(place)
  for (const part of parts.filter(isSupervised)) tellSupervisor(part, 'xd')
  if (!(await waitUntil(isFree, 10))) throw new Error(`end the supervision of ${directory}`)
}

function readLog(place: ServicePlace, name: string, lines: number): string[] {
  serviceDirectory(place, name)
  const directory = `${place.logDirectory}/${name}`
  if (!existsSync(directory)) return []
  // Full files are named by the time they were closed, so that names sort by age; `current` is the newest.
  const files = readdirSync(directory).filter((file) => file.startsWith('@'))
  let found: string[] = []
  for (const file of ['current', ...files.sort().reverse()]) {
    if (found.length >= lines) break
    found = [...linesOf(readTextIfPresent(`${directory}/${file}`)), ...found]
  }
  return found.slice(Math.max(0, found.length - lines))
}

function linesOf(text: string | undefined): string[] {
  return text ? text.trimEnd().split('\n') : []
}
