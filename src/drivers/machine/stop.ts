import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import type { StopOptions } from '../../model/app/machine-spec.ts'
import { waitUntil } from '../../model/poll.ts'
import { readSignal } from '../../model/signal.ts'
import { openForRemoval } from '../box/disk.ts'
import { removeSockets } from '../box/enter/session-socket.ts'
import { removeBoxNetwork } from '../box/network.ts'
import { isFrozen, removeFreezer, thaw } from '../host/cgroup-freezer.ts'
import { findProcess, killProcess } from '../host/process-list.ts'
import { emptyTrash, moveToTrash } from '../host/trash.ts'
import { removeUnusedBridges } from '../network/private.ts'
import { controlService, isSupervised, writeControl } from '../s6/control.ts'
import { markDown } from '../s6/service-directory.ts'
import { findReapers } from './container.ts'
import { readFreezer } from './control-group.ts'
import { groupName, type MachineHost, servicePlace } from './host.ts'
import { keepLog } from './kept-log.ts'
import { changeDirectory, type MachinePaths, machinePaths } from './paths.ts'
import { hasEnded } from './process.ts'

/** The time for killed processes to disappear. */
const killTimeoutSeconds = 10
/** s6 kills the program itself; after this long the driver asks it to. */
const killGraceMs = 1_000
const maxPollMs = 50

export async function stopMachine(
  host: MachineHost,
  id: string,
  { signal, timeoutMs, isSignalRequested }: StopOptions,
): Promise<void> {
  const paths = machinePaths(host.home, id)
  if (!existsSync(paths.service)) return
  const reapers = findReapers(paths)
  writeFileSync(paths.stopping, `${readSignal(signal)}${isSignalRequested ? ' requested' : ''}\n`)
  markDown(servicePlace(host.home), paths.supervisedName)
  writeKillDelay(paths, timeoutMs)
  killIfFrozen(paths, reapers)
  if (isSupervised(paths.service)) {
    controlService(paths.service, 'd')
    await waitForExit(paths, timeoutMs)
  }
  // They are the init processes of the pid namespaces, so they are gone only when all others are.
  const haveEnded = () => reapers.every((pid) => findProcess(pid) === undefined)
  if (!(await waitUntil(haveEnded, killTimeoutSeconds)))
    throw new Error(`stop the machine ${id}: its processes survive SIGKILL`)
}

export async function killMachine(host: MachineHost, id: string): Promise<void> {
  await stopMachine(host, id, { signal: 'SIGKILL', timeoutMs: 0 })
}

/** s6 takes zero for "never", so the delay is at least a millisecond. */
export function killDelayMs(timeoutMs: number): number {
  return Math.max(1, Math.ceil(timeoutMs))
}

export function writeKillDelay(paths: MachinePaths, timeoutMs: number): void {
  writeFileSync(`${paths.service}/timeout-kill`, `${killDelayMs(timeoutMs)}\n`)
}

/** Kills a frozen machine before thawing it, so that it does not run again just to be stopped. */
function killIfFrozen(paths: MachinePaths, reapers: number[]): void {
  const freezer = readFreezer(paths)
  if (freezer === undefined || !isFrozen(freezer)) return
  for (const pid of reapers) killProcess(pid, 'SIGKILL')
  thaw(freezer)
}

/** Polls less and less often, because most programs exit at once. */
async function waitForExit(paths: MachinePaths, timeoutMs: number): Promise<void> {
  const startedAt = performance.now()
  for (let isKilled = false; !hasEnded(paths); ) {
    // The pipe exists while the finish script delays a restart.
    if (existsSync(paths.wake)) writeControl(paths.wake, '.')
    const elapsedMs = performance.now() - startedAt
    if (elapsedMs > timeoutMs + killGraceMs && !isKilled) {
      controlService(paths.service, 'k')
      isKilled = true
    }
    if (elapsedMs > timeoutMs + killTimeoutSeconds * 1000)
      throw new Error(`stop ${paths.supervisedName}: it survives SIGKILL`)
    await sleep(Math.min(1 + elapsedMs / 20, maxPollMs))
  }
}

export async function removeMachine(host: MachineHost, id: string, slot: number): Promise<void> {
  const { home, supervisor, cgroups } = host
  const paths = machinePaths(home, id)
  await killMachine(host, id)
  await keepLog(paths).catch(() => undefined) // the removal has to succeed on a full disk, because it frees space
  for (const name of [paths.supervisedName, paths.errorLogName]) await supervisor.removeService(name)
  await removeBoxNetwork(home, slot)
  await removeUnusedBridges(home)
  const freezer = readFreezer(paths)
  await cgroups.removeCgroup(groupName(home, id))
  if (freezer !== undefined) removeFreezer(freezer)
  removeSockets(home, id)
  await openForRemoval(paths)
  rmSync(`${changeDirectory(home)}/${id}`, { force: true })
  moveToTrash(home, paths.directory)
  emptyTrash(home)
}
