// The processes of a supervision tree: those of s6 itself and those of the services.
import { waitUntil } from '../../model/poll.ts'
import {
  filterProcesses,
  findWorkingDirectory,
  hasEnvironmentEntry,
  killProcess,
  listProcesses,
  type Process,
  readEnvironment,
} from '../host/process-list.ts'
import { type SupervisorPaths, serviceMark } from './service-directory.ts'

const s6Programs = ['s6-svscan', 's6-supervise', 's6-log']

/** Lists the s6 processes of the tree. s6-svscan comes first, so that it does not replace those killed after it. */
export function listS6Processes(paths: SupervisorPaths): Process[] {
  return listProcesses()
    .filter((found) => s6Programs.includes(found.name) && isBelow(paths, findWorkingDirectory(found.pid)))
    .sort((a, b) => s6Programs.indexOf(a.name) - s6Programs.indexOf(b.name))
}

function isBelow(paths: SupervisorPaths, directory: string | undefined): boolean {
  return `${directory}/`.startsWith(`${paths.treeDirectory}/`)
}

/** Whether the process is the s6-supervise of a service, not of its log. */
export function isServiceSupervisor(found: Process): boolean {
  return found.name === 's6-supervise' && !isLogSupervisor(found)
}

function isLogSupervisor(found: Process): boolean {
  return findWorkingDirectory(found.pid)?.endsWith('/log') ?? false
}

/**
 * Ends the s6-supervise processes that a killed s6-svscan left behind, which a new one cannot command. SIGTERM ends the
 * service and then s6-supervise; SIGHUP does the same for a log once its input is closed.
 */
export function terminateOrphans(paths: SupervisorPaths, treePid: number | undefined): void {
  for (const found of listS6Processes(paths)) {
    if (found.name !== 's6-supervise' || found.parent === treePid) continue
    killProcess(found.pid, isLogSupervisor(found) ? 'SIGHUP' : 'SIGTERM')
  }
}

/** Continues s6 processes that were stopped with a signal; others ignore SIGCONT. */
export function resumeSupervision(paths: SupervisorPaths): void {
  for (const { pid } of listS6Processes(paths)) killProcess(pid, 'SIGCONT')
}

/** Lists the processes of all services: those in these sessions and those that carry the mark of a service. */
export function listServiceProcesses(paths: SupervisorPaths, sessions: Set<number>): Process[] {
  return [...listProcesses().filter((found) => sessions.has(found.session)), ...listMarkedProcesses(paths)]
}

export function listMarkedProcesses(paths: SupervisorPaths): Process[] {
  const mark = serviceMark(paths, '')
  return listProcesses().filter((found) => readEnvironment(found.pid).some((entry) => entry.startsWith(mark)))
}

/** Lists the processes of one service: those in the session of its main process and those that carry its mark. */
export function processesOfService(
  paths: SupervisorPaths,
  name: string,
  session: number | undefined,
): Promise<Process[]> {
  const mark = serviceMark(paths, name)
  return filterProcesses((found) => found.session === session || hasEnvironmentEntry(found.pid, mark))
}

/** Kills the listed processes until the list is empty; false after 10 s. */
export function killUntilGone(list: () => Process[] | Promise<Process[]>): Promise<boolean> {
  return waitUntil(async () => {
    const found = await list()
    for (const { pid } of found) killProcess(pid, 'SIGKILL')
    return found.length === 0
  }, 10)
}
