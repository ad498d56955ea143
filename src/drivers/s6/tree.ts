import { spawn } from 'node:child_process'
import { closeSync, mkdirSync, openSync, readdirSync, statSync } from 'node:fs'
import { waitUntil } from '../../model/poll.ts'
import { readTextIfPresent } from '../host/file.ts'
import { baseEnvironment, commandExists, run } from '../host/process.ts'
import { isSupervised, isTreeRunning } from './control.ts'
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

/** A limit of s6-svscan, which counts a service and its log separately. It only reserves memory for pointers. */
const maxServices = 20_000
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
  spawnTree(paths)
  const isBack = (service: string) =>
    isSupervised(service) && (survivors.includes(service) || hasFreshStatus(service, startedAtMs))
  const isUp = await waitUntil(() => isTreeRunning(paths) && services.every(isBack), startTimeoutSeconds)
  if (!isUp) throw new Error(`start the supervision tree: ${(readTextIfPresent(treeLog(paths)) ?? '').slice(-1000)}`)
}

function treeLog(paths: SupervisorPaths): string {
  return `${paths.logDirectory}/.tree.log`
}

function spawnTree(paths: SupervisorPaths): void {
  const log = openSync(treeLog(paths), 'a', 0o600)
  const child = spawn('s6-svscan', ['-c', String(maxServices), paths.treeDirectory], {
    // A separate session keeps the tree alive on Ctrl-C and when this process ends.
    detached: true,
    stdio: ['ignore', log, log],
    env: baseEnvironment,
    cwd: '/',
  })
  child.on('error', () => undefined)
  child.unref()
  closeSync(log)
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
