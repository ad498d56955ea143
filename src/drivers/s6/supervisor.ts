import { existsSync, mkdirSync } from 'node:fs'
import { waitUntil } from '../../model/poll.ts'
import { run } from '../host/process.ts'
import { findProcess, isStopped, killProcess } from '../host/process-list.ts'
import { controlService, isSupervised, isTreeRunning, readTreeLog, rescanTree, treeNotRunning } from './control.ts'
import type { ServiceSignal, ServiceSpec, Supervisor } from './driver.ts'
import {
  clearDown,
  clearPendingChange,
  ensureDefinition,
  ensureFirstDefinition,
  hasPendingChange,
  isMarkedDown,
  type SupervisorPaths,
  serviceDirectory,
} from './service-directory.ts'
import { readLog } from './service-log.ts'
import { removeService } from './service-removal.ts'
import { renderDefinition } from './service-script.ts'
import { inspectService } from './service-state.ts'
import { bringDown, stopService } from './service-stop.ts'
import { readStatus } from './status.ts'
import { ensureTree, inspectTree, listServiceNames, stopTree } from './tree.ts'
import { resumeSupervision } from './tree-process.ts'

export function s6Supervisor(paths: SupervisorPaths): Supervisor {
  return {
    ensureTree: () => ensureTree(paths),
    inspectTree: () => inspectTree(paths),
    stopTree: ({ timeoutSeconds = 30 } = {}) => stopTree(paths, timeoutSeconds),
    ensureService: (name, spec) => ensureService(paths, name, spec),
    startService: (name) => startService(paths, name),
    ensureSupervised: async (name) => {
      if (isTreeRunning(paths)) await ensureSupervised(paths, name)
    },
    stopService: (name, options = {}) => stopService(paths, name, options.timeoutSeconds),
    restartService: (name) => restartService(paths, name),
    signalService: (name, signal) => signalService(paths, name, signal),
    inspectService: (name) => inspectService(paths, name),
    listServices: () => listServiceNames(paths).sort(),
    removeService: (name) => removeService(paths, name),
    readLog: (name, lines) => readLog(paths, name, lines),
  }
}

async function ensureService(paths: SupervisorPaths, name: string, spec: ServiceSpec): Promise<void> {
  if (!isTreeRunning(paths)) throw treeNotRunning(paths, `start service ${name}: `)
  const definition = renderDefinition(paths, name, spec)
  await removeIncomplete(paths, name)
  mkdirSync(`${paths.logDirectory}/${name}`, { recursive: true, mode: 0o700 })
  if (spec.once) {
    ensureFirstDefinition(paths, name, definition)
    await ensureSupervised(paths, name)
    return resumeStopped(paths, name)
  }
  const isNew = !existsSync(serviceDirectory(paths, name))
  ensureDefinition(paths, name, definition)
  await ensureSupervised(paths, name)
  // s6 has started a new service already. If it has ended for good since, it must not be started again.
  if (isNew) return
  if (hasPendingChange(paths, name)) {
    await restartService(paths, name)
    clearPendingChange(paths, name)
    return
  }
  await resumeStopped(paths, name)
  const state = await inspectService(paths, name)
  if (isMarkedDown(paths, name) || (state.is !== 'absent' && !state.wanted)) await startService(paths, name)
}

/** Removes a service whose log directory was deleted by hand: s6 does not supervise such a half again. */
async function removeIncomplete(paths: SupervisorPaths, name: string): Promise<void> {
  const directory = serviceDirectory(paths, name)
  if (existsSync(directory) && !existsSync(`${directory}/log`)) await removeService(paths, name)
}

async function ensureSupervised(paths: SupervisorPaths, name: string): Promise<void> {
  const directory = serviceDirectory(paths, name)
  const isReady = () =>
    isSupervised(directory) && isSupervised(`${directory}/log`) && existsSync(`${directory}/supervise/status`)
  if (isReady()) return
  rescanTree(paths, 'a')
  if (await waitUntil(isReady, 5)) return
  resumeSupervision(paths)
  if (await waitUntil(isReady, 10)) return
  const cause = new Error(`s6-svscan runs${readTreeLog(paths)}`)
  throw new Error(`supervise service ${name}: s6 did not start a supervisor`, { cause })
}

/**
 * Continues processes that were stopped with SIGSTOP. A stopped logger blocks the service as soon as the pipe is full,
 * and a stopped s6-supervise does not notice the end of its process.
 */
async function resumeStopped(paths: SupervisorPaths, name: string): Promise<void> {
  const directory = serviceDirectory(paths, name)
  for (const part of [directory, `${directory}/log`]) {
    const status = await readStatus(part)
    if (status?.is !== 'up') continue
    if (isStopped(status.pid)) killProcess(status.pid, 'SIGCONT')
    if (!findProcess(status.pid)) resumeSupervision(paths)
  }
}

async function startService(paths: SupervisorPaths, name: string): Promise<void> {
  clearDown(paths, name)
  await ensureSupervised(paths, name)
  controlService(serviceDirectory(paths, name), 'u')
}

// The restart command of s6 waits a second and never follows its signal with SIGKILL.
async function restartService(paths: SupervisorPaths, name: string): Promise<void> {
  await bringDown(paths, name)
  await startService(paths, name)
}

/** The letter that s6-svc uses for each signal. */
const signalLetters: Record<ServiceSignal, string> = {
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
}

async function signalService(paths: SupervisorPaths, name: string, signal: ServiceSignal): Promise<void> {
  // Callers continue as if the signal had arrived. Starting s6-svc takes longer than the delivery, a write to the
  // control FIFO would not.
  await run('s6-svc', [`-${signalLetters[signal]}`, serviceDirectory(paths, name)])
}
