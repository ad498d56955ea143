// Machines under the supervisor of the host. A machine is a directory (`machine/<id>`), a service whose program is the
// image's in a box, and a second service that writes its standard error to disk. The finish script of the first decides
// about restarts, so that machines live without the control plane.
import type { ChildProcess } from 'node:child_process'
import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { keyedQueue } from '../../model/keyed-queue.ts'
import { readSignal } from '../../model/signal.ts'
import { filterFile, openForRemoval, readMaking } from '../box/disk.ts'
import type { BoxCommand, Isolation } from '../box/driver.ts'
import { type Entrance, renderEntry } from '../box/enter/enter.ts'
import { readLimits } from '../box/lifecycle.ts'
import { boxNetwork, removeLink } from '../box/network.ts'
import { boxUid } from '../box/paths.ts'
import { abilityOf, type BoxAbility } from '../box/probe.ts'
import { findProgram, findReaper } from '../box/process.ts'
import { type BoxQuota, boxQuota, hasSubvolumes } from '../box/quota.ts'
import { type CgroupDriver, cgroupName } from '../host/cgroup.ts'
import { ensureFreezer, freeze, isFrozen, removeFreezer, thaw } from '../host/cgroup-freezer.ts'
import { readGroupMemory, reclaimMemory, setMemoryLimit } from '../host/cgroup-memory.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'
import { findCommand, isRoot, spawnWithPipes, waitUntil } from '../host/process.ts'
import { findProcess, killProcess } from '../host/process-list.ts'
import { driverProgram } from '../host/program.ts'
import { discard, sweepTrash } from '../host/trash.ts'
import { removeUnusedBridges } from '../network/private.ts'
import { isSupervised, tell, tellSupervisor } from '../s6/control.ts'
import { clearDown, ensureLogger, markDown, type ServicePlace, type ServiceSpec } from '../s6/service-directory.ts'
import type { Supervisor } from '../s6/supervisor.ts'
import type { VolumeDriver } from '../volume/driver.ts'
import { watchChanges } from './change.ts'
import { prepareMachine, readFreezer, readMemoryGroup, readVersion, workingDirectory } from './disk.ts'
import { type MachineDriver, type MachineSpec, MachineStartError, type MachineTraffic } from './driver.ts'
import { followMachineLog, readMachineLog, readMachineLogAfter } from './log.ts'
import { changeDirectory, type MachinePaths, machinePaths } from './paths.ts'
import { hasEnded, inspectProcess, readExits } from './process.ts'
import { listNamespace } from './process-list.ts'
import { renderErrorLog, renderFinish, renderOutputLog } from './script.ts'
import { holdTraffic } from './traffic.ts'

export interface MachineOptions {
  home: Home
  supervisor: Supervisor
  cgroups: CgroupDriver
  volumes: Pick<VolumeDriver, 'mountOf'>
  /** What this machine is taken to be able to do, instead of trying. */
  ability?: BoxAbility
}

interface MachineHost extends MachineOptions {
  quota: BoxQuota
  able(): Promise<BoxAbility>
}

/** For a start; a volume may have to be let go of by another machine first. */
const startSeconds = 30
/** For what was killed to be gone. */
const killSeconds = 10

export function machineDriver(options: MachineOptions): MachineDriver {
  const { home, cgroups } = options
  const host: MachineHost = {
    ...options,
    quota: boxQuota(home.path),
    able: async () => options.ability ?? abilityOf(home, cgroups.cgroupsAvailable()),
  }
  const pathsOf = (id: string) => machinePaths(home, id)
  // Of one machine one thing at a time; a stop does not wait for the end of a start.
  const inTurn = keyedQueue()
  // Each starts from the limit that the one before has left.
  const inMemoryTurn = keyedQueue()
  const starting = new Map<string, AbortController>()
  const afterStart = <T>(id: string, work: () => Promise<T>) => {
    starting.get(id)?.abort()
    return inTurn(id, work)
  }
  return {
    isolation: async () => isolationOf(await host.able()),
    startMachine: (spec) =>
      inTurn(spec.id, async () => {
        const leaving = new AbortController()
        starting.set(spec.id, leaving)
        await startMachine(host, spec, leaving.signal).finally(() => starting.delete(spec.id))
      }),
    inspectMachine: (id, instanceId) => inspectProcess(pathsOf(id), instanceId),
    onChange: (listener) => watchChanges(changeDirectory(home), listener),
    stopMachine: (id, how) => afterStart(id, () => stopMachine(host, id, how)),
    async signalMachine(id, signal) {
      const found = findProgram(pathsOf(id).service)
      if (found) killProcess(found.program, readSignal(signal))
      return found !== undefined
    },
    freezeMachine: (id) => afterStart(id, () => freezeMachine(host, id)),
    thawMachine: (id) => inTurn(id, async () => thawMachine(host, id)),
    holdMachine: (traffic) => inTurn(traffic.id, () => holdMachine(host, traffic)),
    spawnInMachine: (spec, command) => spawnInMachine(host, spec, command),
    async listProcesses(id) {
      const found = findProgram(pathsOf(id).service)
      return found ? listNamespace(found.first) : []
    },
    readMemory(id) {
      const group = memoryOf(host, id)
      return group === undefined ? undefined : readGroupMemory(group)
    },
    setMemoryLimit: (id, bytes) =>
      inMemoryTurn(id, async () => {
        const group = memoryOf(host, id)
        return group !== undefined && setMemoryLimit(group, bytes)
      }),
    reclaimMemory: (id, bytes) =>
      inMemoryTurn(id, async () => {
        const group = memoryOf(host, id)
        return group === undefined ? 0 : reclaimMemory(group, bytes)
      }),
    readLog: (id, lines) => readMachineLog(pathsOf(id).log, lines),
    readLogAfter: (id, afterMs, lines) => readMachineLogAfter(pathsOf(id).log, afterMs, lines),
    followLog: (id, lines, gone) => followMachineLog(pathsOf(id).log, lines, gone),
    removeMachine: (id, slot) => afterStart(id, () => removeMachine(host, id, slot)),
  }
}

function isolationOf({ way, isolation, why }: BoxAbility): Isolation {
  if (way === 'full') return { ...isolation, ...(isolation.gap && { gap: ofMachines(isolation.gap) }) }
  if (way === 'single') return { ...isolation, gap: singleGap }
  return {
    ...isolation,
    gap: `Machines cannot run here: images need namespaces to be mounted in, and ${why ?? 'there are none'}.`,
  }
}

const singleGap =
  'Berth runs as an ordinary user, so that machines have one user and no network, and cannot be reached by anybody.'

function ofMachines(gap: string): string {
  return gap.replace(/^Sandboxes\b/, 'Machines').replace(/\ba sandbox\b/, 'a machine')
}

function groupOf(home: Home, id: string): string {
  return cgroupName(home, `machine-${id}`)
}

/** Of one that runs. */
function memoryOf({ home }: MachineHost, id: string): string | undefined {
  const paths = machinePaths(home, id)
  return findProgram(paths.service) && readMemoryGroup(paths)
}

function placeOf(home: Home): ServicePlace {
  return { treeDirectory: home.tree, logDirectory: home.log }
}

async function startMachine(host: MachineHost, spec: MachineSpec, leaving: AbortSignal): Promise<void> {
  const { home } = host
  const paths = machinePaths(home, spec.id)
  const ability = await host.able()
  if (ability.way === 'none') throw new MachineStartError(isolationOf(ability).gap)
  if (readVersion(paths) === spec.instanceId && findProgram(paths.service)) {
    await holdMachine(host, spec)
    return thawMachine(host, spec.id)
  }
  await stopMachine(host, spec.id, spec.stop)
  const procs = host.cgroups.ensureCgroup(groupOf(home, spec.id), spec.limits)
  prepareMachine(home, paths, spec, {
    way: ability.way,
    hasNetwork: ability.network,
    procs,
    limits: readLimits(procs),
    rootLimit: await rootLimitOf(host, spec),
    volumes: spec.mounts.map(({ volumeId, path }) => ({ ...host.volumes.mountOf(volumeId), path })),
  })
  const before = lastExit(paths)
  await startServices(host, paths, procs, spec)
  await waitForProgram(host, spec, before, leaving)
}

/** Nobody counts what is written before somebody asks for a limit. */
async function rootLimitOf({ home, quota }: MachineHost, { rootGb }: MachineSpec): Promise<string | undefined> {
  if (rootGb === undefined) return hasSubvolumes(home.path) ? 'none' : undefined
  return (await quota.isPossible()) ? String(Math.round(rootGb * 1024 ** 3)) : undefined
}

async function startServices(
  { home, supervisor }: MachineHost,
  paths: MachinePaths,
  procs: string[],
  spec: MachineSpec,
): Promise<void> {
  // Taken up together with the machine, and nobody waits for it.
  ensureLogger(placeOf(home), paths.errorLogName, renderErrorLog(paths))
  const service: ServiceSpec = {
    command: [findCommand('perl') ?? 'perl', driverProgram('box/start.pl'), paths.config],
    cgroup: [...procs, ...ensureFreezer(procs)],
    finish: renderFinish(home, paths, procs),
    logger: renderOutputLog(paths),
    stopTimeoutSeconds: killAfterMs(spec.stop.timeoutMs) / 1000,
  }
  // It is down, so that this is no change to wait for.
  if (existsSync(paths.service)) writeKillTime(paths, spec.stop.timeoutMs)
  await supervisor.ensureService(paths.supervisedName, service)
}

/** Zero would mean never to s6. */
function killAfterMs(timeoutMs: number): number {
  return Math.max(1, Math.ceil(timeoutMs))
}

function writeKillTime(paths: MachinePaths, timeoutMs: number): void {
  writeFileSync(`${paths.service}/timeout-kill`, `${killAfterMs(timeoutMs)}\n`)
}

function lastExit(paths: MachinePaths): number {
  return readExits(paths).at(-1)?.number ?? 0
}

/** How machine-start.pl says that it is the description of the machine that cannot be carried out. */
const refusal = 'refused: '
/** Reasons of the host, which may be gone the next time. */
const passing = /No space left|Input\/output error|Cannot allocate memory|temporarily unavailable|Too many open files/

async function waitForProgram(
  host: MachineHost,
  spec: MachineSpec,
  before: number,
  leaving: AbortSignal,
): Promise<void> {
  const paths = machinePaths(host.home, spec.id)
  const isDecided = () =>
    leaving.aborted || findProgram(paths.service) !== undefined || existsSync(paths.failed) || lastExit(paths) > before
  const inTime = await waitUntil(isDecided, startSeconds)
  if (inTime && !leaving.aborted && !existsSync(paths.failed)) return
  const reason = readTextIfPresent(paths.failed)?.trim() ?? 'it takes too long'
  await stopMachine(host, spec.id, { signal: 'SIGKILL', timeoutMs: 0 })
  if (leaving.aborted) throw new Error(`start the machine ${spec.id}: it was stopped`)
  if (reason.startsWith(refusal) && !passing.test(reason)) throw new MachineStartError(reason.slice(refusal.length))
  throw new Error(`start the machine ${spec.id}: ${reason.replace(refusal, '')}`)
}

async function stopMachine(host: MachineHost, id: string, { signal, timeoutMs }: MachineSpec['stop']): Promise<void> {
  const paths = machinePaths(host.home, id)
  if (!existsSync(paths.service)) return
  const first = findReaper(paths.service)
  writeFileSync(paths.stopping, `${readSignal(signal)}\n`)
  markDown(placeOf(host.home), paths.supervisedName)
  writeKillTime(paths, timeoutMs)
  killIfFrozen(paths, first)
  if (isSupervised(paths.service)) {
    tellSupervisor(paths.service, 'd')
    await waitForEnd(paths, timeoutMs)
  }
  // Its last process takes all others along, and is gone when they are.
  if (first !== undefined && !(await waitUntil(() => findProcess(first) === undefined, killSeconds)))
    throw new Error(`stop the machine ${id}: its processes survive SIGKILL`)
}

// To let it go on for the sake of its end would have it do something that nobody expects of it any more.
function killIfFrozen(paths: MachinePaths, first: number | undefined): void {
  const freezer = readFreezer(paths)
  if (freezer === undefined || !isFrozen(freezer)) return
  if (first !== undefined) killProcess(first, 'SIGKILL')
  thaw(freezer)
}

/** Most end at once; for others it is enough to look from time to time. */
async function waitForEnd(paths: MachinePaths, timeoutMs: number): Promise<void> {
  const begun = performance.now()
  for (let isKilled = false; !hasEnded(paths); ) {
    // In the wait for its next life.
    if (existsSync(paths.wake)) tell(paths.wake, '.')
    const elapsed = performance.now() - begun
    if (elapsed > timeoutMs + 1000 && !isKilled) {
      tellSupervisor(paths.service, 'k')
      isKilled = true
    }
    if (elapsed > timeoutMs + killSeconds * 1000) throw new Error(`stop ${paths.supervisedName}: it survives SIGKILL`)
    await sleep(Math.min(1 + elapsed / 20, 50))
  }
}

async function freezeMachine(host: MachineHost, id: string): Promise<boolean> {
  const paths = machinePaths(host.home, id)
  const freezer = readFreezer(paths)
  if (!findProgram(paths.service)) throw new Error(`suspend the machine ${id}: it is not running`)
  if (freezer === undefined) return false
  // After a reboot there is nothing to go on with.
  markDown(placeOf(host.home), paths.supervisedName)
  await freeze(freezer)
  return true
}

function thawMachine(host: MachineHost, id: string): void {
  const paths = machinePaths(host.home, id)
  if (!findProgram(paths.service)) throw new Error(`resume the machine ${id}: it is not running`)
  const freezer = readFreezer(paths)
  clearDown(placeOf(host.home), paths.supervisedName)
  if (freezer !== undefined && isFrozen(freezer)) thaw(freezer)
}

/** One without a network has nothing to be held to. */
async function holdMachine(host: MachineHost, traffic: MachineTraffic): Promise<boolean> {
  return !(await host.able()).network || holdTraffic(host.home, machinePaths(host.home, traffic.id), traffic)
}

type Entered = Parameters<MachineDriver['spawnInMachine']>[0]

function spawnInMachine(host: MachineHost, spec: Entered, command: BoxCommand): ChildProcess {
  const { program, args, env } = renderEntry(entranceOf(host, spec), command, false)
  return spawnWithPipes(program, args, { env, cwd: '/' })
}

function entranceOf({ home, cgroups }: MachineHost, spec: Entered): Entrance {
  const paths = machinePaths(home, spec.id)
  const way = readMaking(paths)?.way
  if (way === undefined) throw new Error(`there is no machine ${spec.id}`)
  const procs = cgroups.findCgroup(groupOf(home, spec.id))
  return {
    way,
    service: paths.service,
    uid: boxUid(home, spec.slot) ?? process.getuid!(),
    cgroup: [...procs, ...ensureFreezer(procs)],
    filter: filterFile(home),
    isMinimal: false,
    home: workingDirectory(spec),
    env: {},
    machine: { user: spec.user, env: spec.env },
  }
}

async function removeMachine(host: MachineHost, id: string, slot: number): Promise<void> {
  const { home, supervisor, cgroups } = host
  const paths = machinePaths(home, id)
  await stopMachine(host, id, { signal: 'SIGKILL', timeoutMs: 0 })
  for (const name of [paths.supervisedName, paths.errorLogName]) await supervisor.removeService(name)
  if (isRoot()) await removeLink(boxNetwork(home, slot).link)
  await removeUnusedBridges(home)
  const freezer = readFreezer(paths)
  await cgroups.removeCgroup(groupOf(home, id))
  if (freezer !== undefined) removeFreezer(freezer)
  await openForRemoval(paths)
  rmSync(`${changeDirectory(home)}/${id}`, { force: true })
  discard(home, paths.directory)
  sweepTrash(home)
}
