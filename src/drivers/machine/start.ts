import { existsSync } from 'node:fs'
import type { MachineSpec, MachineTraffic } from '../../model/app/machine-spec.ts'
import { isDiskFull } from '../../model/disk-full.ts'
import { waitUntil } from '../../model/poll.ts'
import { readLimits } from '../box/lifecycle.ts'
import { ensureFreezer } from '../host/cgroup-freezer.ts'
import { readTextIfPresent } from '../host/file.ts'
import { findCommand } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import type { ServiceSpec } from '../s6/driver.ts'
import { ensureLoggerService } from '../s6/service-directory.ts'
import { ensureProject } from '../storage/project.ts'
import { findProjectMount, hasSubvolumes } from '../storage/quota.ts'
import { findRunning } from './container.ts'
import { prepareMachine } from './disk.ts'
import { MachineStartError } from './driver.ts'
import { thawMachine } from './freeze.ts'
import { groupName, isolationOf, type MachineHost, servicePlace } from './host.ts'
import { type MachinePaths, machinePaths } from './paths.ts'
import { lastExitNumber, readVersion } from './process.ts'
import { renderErrorLog, renderFinish, renderOutputLog } from './script.ts'
import { killDelayMs, killMachine, stopMachine, writeKillDelay } from './stop.ts'
import { applyTraffic } from './traffic.ts'

/** Covers a volume that another machine has to release first. */
const startTimeoutSeconds = 30

export async function startMachine(host: MachineHost, spec: MachineSpec, cancelled: AbortSignal): Promise<void> {
  const { home } = host
  const paths = machinePaths(home, spec.id)
  const ability = await host.able()
  if (ability.mode === 'none') throw new MachineStartError(isolationOf(ability).gap)
  if (readVersion(paths) === spec.instanceId && findRunning(paths)) {
    await applyTrafficPolicy(host, spec)
    return thawMachine(host, spec.id)
  }
  await stopMachine(host, spec.id, spec.stop)
  const procs = host.cgroups.ensureCgroup(groupName(home, spec.id), spec.limits)
  prepareMachine(home, paths, spec, {
    mode: ability.mode,
    hasNetwork: ability.network,
    procs,
    limits: readLimits(procs),
    rootLimit: await rootLimitOf(host, spec),
    rootProject: await rootProjectOf(host, paths),
    volumes: spec.mounts.map(({ volumeId, path }) => ({ ...host.volumes.mountOf(volumeId), path })),
  })
  const exitsBefore = lastExitNumber(paths)
  await startServices(host, paths, procs, spec)
  await waitForProgram(host, spec, exitsBefore, cancelled)
}

/** A machine without a network has no traffic to restrict. */
export async function applyTrafficPolicy(host: MachineHost, traffic: MachineTraffic): Promise<boolean> {
  return !(await host.able()).network || applyTraffic(host.home, machinePaths(host.home, traffic.id), traffic)
}

/** Avoids quota accounting, which is slow, until a limit is asked for. */
async function rootLimitOf({ home, quota }: MachineHost, { rootGb }: MachineSpec): Promise<string | undefined> {
  if (rootGb === undefined) return hasSubvolumes(home.path) || findProjectMount(home.path) ? 'none' : undefined
  return (await quota.isPossible()) ? String(Math.round(rootGb * 1024 ** 3)) : undefined
}

/** Each start makes a new root filesystem, which start.pl gives the project of the machine. */
async function rootProjectOf({ home }: MachineHost, { directory }: MachinePaths) {
  const mount = findProjectMount(home.path)
  return mount && { id: await ensureProject(home, directory), mountPoint: mount.mountPoint }
}

async function startServices(
  { home, supervisor }: MachineHost,
  paths: MachinePaths,
  procs: string[],
  spec: MachineSpec,
): Promise<void> {
  // The supervisor notices this service together with the machine's, which is waited for.
  ensureLoggerService(servicePlace(home), paths.errorLogName, renderErrorLog(paths))
  const service: ServiceSpec = {
    command: [findCommand('perl') ?? 'perl', driverProgram('box/start.pl'), paths.config],
    cgroup: [...procs, ...ensureFreezer(procs)],
    finish: renderFinish(home, paths, procs),
    logger: renderOutputLog(paths),
    stopTimeoutSeconds: killDelayMs(spec.stop.timeoutMs) / 1000,
  }
  // Written here, while the service is down, so that ensureService sees no changed definition to restart for.
  if (existsSync(paths.service)) writeKillDelay(paths, spec.stop.timeoutMs)
  await supervisor.ensureService(paths.supervisedName, service)
}

/** The prefix by which start.pl marks failures that the machine's description causes. */
const refusedPrefix = 'refused: '
/** Failures of the host, which may be gone at the next attempt even when start.pl reports them with the prefix. */
const transientFailure = /Input\/output error|Cannot allocate memory|temporarily unavailable|Too many open files/

async function waitForProgram(
  host: MachineHost,
  spec: MachineSpec,
  exitsBefore: number,
  cancelled: AbortSignal,
): Promise<void> {
  const paths = machinePaths(host.home, spec.id)
  const isDecided = () =>
    cancelled.aborted ||
    findRunning(paths) !== undefined ||
    existsSync(paths.failed) ||
    lastExitNumber(paths) > exitsBefore
  const inTime = await waitUntil(isDecided, startTimeoutSeconds)
  if (inTime && !cancelled.aborted && !existsSync(paths.failed)) return
  const reason = readTextIfPresent(paths.failed)?.trim() ?? `no program within ${startTimeoutSeconds} s`
  await killMachine(host, spec.id)
  if (cancelled.aborted) throw new Error(`start the machine ${spec.id}: it was stopped`)
  if (reason.startsWith(refusedPrefix) && !transientFailure.test(reason) && !isDiskFull(reason))
    throw new MachineStartError(reason.slice(refusedPrefix.length))
  throw new Error(`start the machine ${spec.id}: ${reason.replace(refusedPrefix, '')}`)
}
