import { spawn } from 'node:child_process'
import { closeSync, constants, mkdirSync, openSync, readdirSync, statSync, writeSync } from 'node:fs'
import { waitUntil } from '../../model/poll.ts'
import { readTextIfPresent } from '../host/file.ts'
import { baseEnvironment, commandExists, run } from '../host/process.ts'
import {
  filterProcesses,
  findWorkingDirectory,
  hasEnvironmentEntry,
  killProcess,
  listProcesses,
  type Process,
  readEnvironment,
} from '../host/process-list.ts'
import { type ServicePlace, serviceMark } from './service-directory.ts'

export type TreeState = { is: 'up'; pid: number } | { is: 'down' }

const s6Programs = ['s6-svscan', 's6-supervise', 's6-log']
// A process of s6 for each service and one for its log; the table is only memory for pointers.
const maxServices = 20_000
const startSeconds = 15
const logSeconds = 5

/** Starts the supervision tree unless it runs. s6 holds a lock, so of two that start it at once one gives way. */
export async function ensureTree(place: ServicePlace): Promise<void> {
  mkdirSync(place.treeDirectory, { recursive: true, mode: 0o700 })
  mkdirSync(place.logDirectory, { recursive: true, mode: 0o700 })
  if (treeAnswers(place)) return
  if (!commandExists('s6-svscan')) throw new Error('s6 is not installed: apt-get install s6')
  const services = listServiceNames(place).map((name) => `${place.treeDirectory}/${name}`)
  // These lived on when s6-svscan was killed, and have no reason to write a status.
  const survivors = services.filter(isSupervised)
  const startedAtMs = Date.now()
  spawnTree(place)
  const isBack = (service: string) =>
    isSupervised(service) && (survivors.includes(service) || hasFreshStatus(service, startedAtMs))
  const up = await waitUntil(() => treeAnswers(place) && services.every(isBack), startSeconds)
  if (!up) throw new Error(`start the supervision tree: ${(readTextIfPresent(treeLog(place)) ?? '').slice(-1000)}`)
}

function treeLog(place: ServicePlace): string {
  return `${place.logDirectory}/.tree.log`
}

function spawnTree(place: ServicePlace): void {
  const log = openSync(treeLog(place), 'a', 0o600)
  const child = spawn('s6-svscan', ['-c', String(maxServices), place.treeDirectory], {
    // A session of its own, so that neither Ctrl-C nor the end of this process reaches the tree.
    detached: true,
    stdio: ['ignore', log, log],
    env: baseEnvironment,
    cwd: '/',
  })
  child.on('error', () => undefined)
  child.unref()
  closeSync(log)
}

// After a reboot the status of the last life is there until s6-supervise has written its own; without waiting for it
// a process that is long gone would be reported as up.
function hasFreshStatus(directory: string, startedAtMs: number): boolean {
  const status = statSync(`${directory}/supervise/status`, { throwIfNoEntry: false })
  // File times are cut to the tick of the kernel's clock, at most 10 ms.
  return status !== undefined && status.mtimeMs >= startedAtMs - 10
}

export function listServiceNames(place: ServicePlace): string[] {
  return readdirSync(place.treeDirectory).filter((entry) => !entry.startsWith('.'))
}

export function treeAnswers(place: ServicePlace): boolean {
  return hasReader(`${place.treeDirectory}/.s6-svscan/control`)
}

/** Whether s6-supervise runs for this directory. */
export function isSupervised(directory: string): boolean {
  return hasReader(`${directory}/supervise/control`)
}

function hasReader(fifo: string): boolean {
  return tell(fifo, '')
}

/**
 * False when nobody listens: s6 programs hold their control fifo open for reading while they live, and a fifo without a
 * reader refuses.
 */
export function tell(fifo: string, command: string): boolean {
  try {
    const descriptor = openSync(fifo, constants.O_WRONLY | constants.O_NONBLOCK)
    try {
      if (command !== '') writeSync(descriptor, command)
    } finally {
      closeSync(descriptor)
    }
    return true
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? ''
    if (['ENXIO', 'ENOENT', 'ENOTDIR', 'EPIPE'].includes(code)) return false
    throw error
  }
}

export function inspectTree(place: ServicePlace): TreeState {
  if (!treeAnswers(place)) return { is: 'down' }
  const found = supervisionProcesses(place).find((process) => process.name === 's6-svscan')
  return found ? { is: 'up', pid: found.pid } : { is: 'down' }
}

/** Takes up what is new; with `an` also ends what is gone. */
export function rescanTree(place: ServicePlace, command: 'a' | 'an'): void {
  if (!tell(`${place.treeDirectory}/.s6-svscan/control`, command))
    throw new Error('the supervision tree is not running')
}

/** In letters, as s6-svc does. */
export function tellSupervisor(directory: string, command: string): void {
  if (!tell(`${directory}/supervise/control`, command)) throw new Error(`${directory} is not supervised`)
}

/** Ends every service and then the tree itself. What is wanted stays as it is: the next `ensureTree` brings it back. */
export async function stopTree(place: ServicePlace, timeoutSeconds: number): Promise<void> {
  const sessions = new Set(markedProcesses(place).map((found) => found.session))
  const tree = inspectTree(place)
  if (tree.is === 'up') await run('s6-svscanctl', ['-t', place.treeDirectory])
  terminateOrphans(place, tree.is === 'up' ? tree.pid : undefined)
  const inTime = await waitUntil(() => !supervisionProcesses(place).some(watchesService), timeoutSeconds)
  // Children that a service left behind hold its log open. Without them the logs are written to their end.
  if (inTime && (await killUntilGone(() => serviceProcesses(place, sessions)))) {
    if (await waitUntil(() => supervisionProcesses(place).length === 0, logSeconds)) return
  }
  const gone = await killUntilGone(() => [...supervisionProcesses(place), ...serviceProcesses(place, sessions)])
  if (!gone) throw new Error(`stop the supervision tree in ${place.treeDirectory}: processes survive SIGKILL`)
}

function watchesService(found: Process): boolean {
  return found.name === 's6-supervise' && !watchesLog(found)
}

function watchesLog(found: Process): boolean {
  return findWorkingDirectory(found.pid)?.endsWith('/log') ?? false
}

// A tree that was killed leaves its s6-supervise processes behind, which a new one cannot command. To these
// SIGTERM means to end the service and then itself, and SIGHUP to end with the log's last line.
function terminateOrphans(place: ServicePlace, treePid: number | undefined): void {
  for (const found of supervisionProcesses(place)) {
    if (found.name !== 's6-supervise' || found.parent === treePid) continue
    killProcess(found.pid, watchesLog(found) ? 'SIGHUP' : 'SIGTERM')
  }
}

function serviceProcesses(place: ServicePlace, sessions: Set<number>): Process[] {
  return [...listProcesses().filter((found) => sessions.has(found.session)), ...markedProcesses(place)]
}

// s6-svscan comes first, so that it does not replace what is killed after it.
function supervisionProcesses(place: ServicePlace): Process[] {
  return listProcesses()
    .filter((found) => s6Programs.includes(found.name) && isBelow(place, findWorkingDirectory(found.pid)))
    .sort((a, b) => s6Programs.indexOf(a.name) - s6Programs.indexOf(b.name))
}

/** Those that somebody stopped with a signal go on and do what they were told meanwhile; others take no notice. */
export function resumeSupervision(place: ServicePlace): void {
  for (const { pid } of supervisionProcesses(place)) killProcess(pid, 'SIGCONT')
}

function isBelow(place: ServicePlace, directory: string | undefined): boolean {
  return `${directory}/`.startsWith(`${place.treeDirectory}/`)
}

function markedProcesses(place: ServicePlace): Process[] {
  const mark = serviceMark(place, '')
  return listProcesses().filter((found) => readEnvironment(found.pid).some((entry) => entry.startsWith(mark)))
}

/** What lives of one service: everything in the session of its main process and everything that carries its mark. */
export function processesOfService(place: ServicePlace, name: string, session: number | undefined): Promise<Process[]> {
  const mark = serviceMark(place, name)
  return filterProcesses((found) => found.session === session || hasEnvironmentEntry(found.pid, mark))
}

/** Kills what the look finds until it finds nothing. */
export function killUntilGone(look: () => Process[] | Promise<Process[]>): Promise<boolean> {
  return waitUntil(async () => {
    const found = await look()
    for (const { pid } of found) killProcess(pid, 'SIGKILL')
    return found.length === 0
  }, 10)
}
