// Runs machines under the supervisor of the host. A machine is a directory (`machine/<id>`), a service that runs the
// image's program in a box, and a second service that logs its standard error. The finish script of the first decides
// about restarts, so machines keep running without the control plane.
import { keyedQueue } from '../../model/keyed-queue.ts'
import { readSignal } from '../../model/signal.ts'
import { enterSpares } from '../box/enter/spare.ts'
import { probeAbility } from '../box/probe.ts'
import { findProgram } from '../box/process.ts'
import { readGroupMemory, reclaimMemory, setMemoryLimit } from '../host/cgroup-memory.ts'
import type { Home } from '../host/home.ts'
import { killProcess } from '../host/process-list.ts'
import { storageQuota } from '../storage/quota.ts'
import { watchChanges } from './change.ts'
import { findPrograms, findRunning, readContainers, reportHealth } from './container.ts'
import { readMemoryGroup } from './control-group.ts'
import type { MachineDriver, MachineProcessEntry } from './driver.ts'
import { spawnInMachine, startSessionInMachine } from './exec.ts'
import { freezeMachine, thawMachine } from './freeze.ts'
import { isolationOf, type MachineHost, type MachineOptions } from './host.ts'
import { findLog, trimKeptLogs, writePlatformLine } from './kept-log.ts'
import { followMachineLog, readMachineLog, readMachineLogAfter } from './log.ts'
import { changeDirectory, type MachinePaths, machinePaths } from './paths.ts'
import { inspectProcess } from './process.ts'
import { listListening, listNamespace } from './process-list.ts'
import { applyTrafficPolicy, startMachine } from './start.ts'
import { removeMachine, stopMachine } from './stop.ts'

export function machineDriver(options: MachineOptions): MachineDriver {
  const { home, cgroups } = options
  const host: MachineHost = {
    ...options,
    quota: storageQuota(home),
    able: async () => options.ability ?? probeAbility(home, cgroups.cgroupsAvailable()),
  }
  return { ...machineOperations(host), ...memoryOperations(home), ...machineReaders(host) }
}

type Operations =
  | 'startMachine'
  | 'stopMachine'
  | 'freezeMachine'
  | 'thawMachine'
  | 'applyTrafficPolicy'
  | 'removeMachine'

/** Runs one operation per machine at a time. Operations that end a program cancel a start in progress. */
function machineOperations(host: MachineHost): Pick<MachineDriver, Operations> {
  const queue = keyedQueue()
  const starting = new Map<string, AbortController>()
  const afterCancellingStart = <T>(id: string, work: () => Promise<T>) => {
    starting.get(id)?.abort()
    return queue(id, work)
  }
  return {
    startMachine: (spec) =>
      queue(spec.id, async () => {
        const cancel = new AbortController()
        starting.set(spec.id, cancel)
        await startMachine(host, spec, cancel.signal).finally(() => starting.delete(spec.id))
      }),
    stopMachine: (id, how) => afterCancellingStart(id, () => stopMachine(host, id, how)),
    freezeMachine: (id) => afterCancellingStart(id, () => freezeMachine(host, id)),
    thawMachine: (id) => queue(id, async () => thawMachine(host, id)),
    applyTrafficPolicy: (traffic) => queue(traffic.id, () => applyTrafficPolicy(host, traffic)),
    removeMachine: (id, slot) => afterCancellingStart(id, () => removeMachine(host, id, slot)),
  }
}

/** Changes the memory of a machine one call after another, since each starts from the limit that the previous one set. */
function memoryOperations(home: Home): Pick<MachineDriver, 'readMemory' | 'setMemoryLimit' | 'reclaimMemory'> {
  const queue = keyedQueue()
  return {
    readMemory(id) {
      const group = runningMemoryGroup(home, id)
      return group === undefined ? undefined : readGroupMemory(group)
    },
    setMemoryLimit: (id, bytes) =>
      queue(id, async () => {
        const group = runningMemoryGroup(home, id)
        return group !== undefined && setMemoryLimit(group, bytes)
      }),
    reclaimMemory: (id, bytes) =>
      queue(id, async () => {
        const group = runningMemoryGroup(home, id)
        return group === undefined ? 0 : reclaimMemory(group, bytes)
      }),
  }
}

function runningMemoryGroup(home: Home, id: string): string | undefined {
  const paths = machinePaths(home, id)
  return findRunning(paths) && readMemoryGroup(paths)
}

type Readers =
  | 'isolation'
  | 'inspectMachine'
  | 'onChange'
  | 'signalMachine'
  | 'reportHealth'
  | 'spawnInMachine'
  | 'startSession'
  | 'listProcesses'
  | 'listListening'
  | 'writeLog'
  | 'trimKeptLogs'
  | 'readLog'
  | 'readLogAfter'
  | 'followLog'

/** Operations that need not wait for others. */
function machineReaders(host: MachineHost): Pick<MachineDriver, Readers> {
  const { home } = host
  const spares = enterSpares()
  const pathsOf = (id: string) => machinePaths(home, id)
  return {
    isolation: async () => isolationOf(await host.able()),
    inspectMachine: (id, instanceId) => inspectProcess(pathsOf(id), instanceId),
    onChange: (listener) => watchChanges(changeDirectory(home), listener),
    async signalMachine(id, signal) {
      const found = findPrograms(pathsOf(id))
      for (const pid of found) killProcess(pid, readSignal(signal))
      return found.length > 0
    },
    reportHealth: (id, container, run, health) => reportHealth(pathsOf(id), container, run, health),
    spawnInMachine: (machine, command) => spawnInMachine(host, machine, command),
    startSession: (machine, command, start, events) =>
      startSessionInMachine(host, spares, machine, command, start, events),
    async listProcesses(id) {
      return listMachineProcesses(pathsOf(id))
    },
    listListening(id) {
      const found = findRunning(pathsOf(id))
      return found && [...listListening(found.first).values()]
    },
    writeLog: (id, text) => void writePlatformLine(pathsOf(id), text),
    readLog: (id, lines) => readMachineLog(findLog(pathsOf(id)), lines),
    readLogAfter: (id, afterMs, lines) => readMachineLogAfter(findLog(pathsOf(id)), afterMs, lines),
    followLog: (id, lines, signal) => followMachineLog(findLog(pathsOf(id)), lines, signal),
    trimKeptLogs: () => trimKeptLogs(home),
  }
}

/** The pids are those inside, so processes of two containers can have the same. */
async function listMachineProcesses(paths: MachinePaths): Promise<MachineProcessEntry[]> {
  const containers = readContainers(paths)
  if (!containers) {
    const found = findProgram(paths.service)
    return found ? listNamespace(found.first) : []
  }
  const listed = containers.map(async ({ name }) => {
    const found = findProgram(paths.service, name)
    return found ? (await listNamespace(found.first)).map((entry) => ({ ...entry, container: name })) : []
  })
  return (await Promise.all(listed)).flat()
}
