// Services of a box, supervised by the s6 inside it. The state files of s6 are in directories that the box can write, so
// they are parsed as untrusted input. Commands go to s6 through its control pipes.
import { existsSync, readdirSync, rmSync, statfsSync, unlinkSync } from 'node:fs'
import { basename } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { BoxSpec } from '../../../model/sandbox/box.ts'
import type { Service } from '../../../model/sandbox/service.ts'
import type { ServiceProcess } from '../../../model/sandbox/service-state.ts'
import type { Home } from '../../host/home.ts'
import { emptyTrash, moveToTrash } from '../../host/trash.ts'
import { withUntrustedDirectory } from '../../host/untrusted-file.ts'
import type { SupervisedStatus } from '../../s6/status.ts'
import type { BoxDriver } from '../driver.ts'
import { boxPaths, boxUid } from '../paths.ts'
import { toolPath } from '../tools.ts'
import type { BoxServices, WantedService } from './driver.ts'
import {
  ensureFiles,
  ensureShutdown,
  hasFiles,
  markDown,
  type ServiceBox,
  scannedEntries,
  setStopTimeout,
  supervisedParts,
} from './files.ts'
import { openServiceLog } from './log.ts'
import { isOutdated } from './revision.ts'
import { defaultStopMs } from './script.ts'
import { scriptText } from './script-text.ts'
import { inspectProcess, type RunPaths, readStartId, readStatus, runPaths, writePipe } from './status.ts'

interface Host {
  home: Home
  boxes: Pick<BoxDriver, 'spawnInBox'>
}

/** One service of one box. */
interface Target {
  host: Host
  spec: BoxSpec
  box: ServiceBox
  name: string
  run: RunPaths
}

export function boxServices(host: Host): BoxServices {
  const { home } = host
  const boxOf = (spec: BoxSpec): ServiceBox => ({
    paths: boxPaths(home, spec.id),
    uid: boxUid(home, spec.slot),
    image: spec.image,
  })
  const runPathsOf = (boxId: string, name: string) => runPaths(boxPaths(home, boxId).run, name)
  const target = (spec: BoxSpec, name: string): Target => ({
    host,
    spec,
    box: boxOf(spec),
    name,
    run: runPathsOf(spec.id, name),
  })
  return {
    inspectService: (boxId, { name, health }) => inspectProcess(runPathsOf(boxId, name), health !== null),
    ensureService: (spec, wanted, onDown) => ensureService(target(spec, wanted.name), wanted, onDown),
    isSettled: (spec, service, environment) => isSettled(boxOf(spec), service, environment),
    isCurrent: (boxId, service) => !isOutdated(boxPaths(home, boxId).run, service),
    isDiskFull: (boxId) => isDiskFull(boxPaths(home, boxId).directory),
    setOrder: (spec, services) => ensureShutdown(boxOf(spec), services),
    hurryService: (boxId, name) => wake(runPathsOf(boxId, name)),
    signalService: (spec, name, signal) => signalService(target(spec, name), signal),
    listDefined: (boxId) => listDefined(boxPaths(home, boxId).service),
    openLog: (boxId, name) => openServiceLog(boxPaths(home, boxId).log, name),
  }
}

/** Whether s6 does what the row says: it may still be stopping the service, or wait before it starts it again. */
function obeys({ wanted }: Service, found: ServiceProcess): boolean {
  return found.is === 'absent' ? !wanted : found.wanted === wanted
}

function isSettled(box: ServiceBox, service: Service, environment: Record<string, string>): boolean {
  const { run } = box.paths
  const found = inspectProcess(runPaths(run, service.name), false)
  if (!obeys(service, found) || isOutdated(run, service)) return false
  return hasFiles(box, { definition: service, environment, down: !service.wanted })
}

async function ensureService(
  target: Target,
  { service, environment }: WantedService,
  onDown: () => void = () => undefined,
): Promise<void> {
  if (!service) return removeService(target)
  const { box, run } = target
  // A directory that the removal of the box has taken away must not be made again.
  if (!existsSync(box.paths.service)) return
  const { wanted, stopMs } = service
  const mustEnd = !wanted || isOutdated(run.run, service)
  const stop = () => stopService(target, { timeoutMs: stopMs ?? defaultStopMs })
  if (mustEnd) await stop()
  onDown()
  ensureFiles(box, { definition: service, environment, down: mustEnd })
  if (!wanted) return
  // A box that starts at this moment may have started it before its files were replaced.
  if (mustEnd && isUp(readStatus(run))) await stop()
  if (!obeys(service, inspectProcess(run, false))) await startService(target)
}

/** Less than any program can use. */
const minFreeBytes = 16 * 1024

function isDiskFull(directory: string): boolean {
  if (!existsSync(directory)) return false
  const { bavail, bsize } = statfsSync(directory)
  return bavail * bsize < minFreeBytes
}

function listDefined(directory: string): string[] {
  if (!existsSync(directory)) return []
  return readdirSync(directory).filter((name) => !name.startsWith('.') && !name.includes('~'))
}

/** The control pipe of s6-svscan, relative to the run directory. */
const scanControl = '.s6-svscan/control'

/** Ends the delay before a restart. */
function wake({ run, wake }: RunPaths): void {
  writePipe(run, wake, '\n')
}

/** Polls with growing delays, because most changes take milliseconds and some take seconds. */
async function waitFor(holds: () => boolean, timeoutMs: number): Promise<boolean> {
  const deadline = performance.now() + timeoutMs
  for (let delay = 1; !holds(); delay = Math.min(delay * 1.3, 25)) {
    if (performance.now() > deadline) return false
    await sleep(delay)
  }
  return true
}

/** s6 reacts within milliseconds, unless the host is very busy. */
const reactionMs = 10_000
const rescanMs = 500

async function ensureSupervised({ box: { paths }, name }: Target): Promise<void> {
  const parts = supervisedParts(name).map((part) => runPaths(paths.run, part))
  const isSupervised = () => parts.every((part) => readStatus(part) !== undefined)
  if (isSupervised()) return
  let lastScan = 0
  const scanUntilSupervised = () => {
    if (isSupervised()) return true
    // A box that is just starting does not read the pipe yet, so the request is repeated.
    if (performance.now() - lastScan > rescanMs && writePipe(paths.run, scanControl, 'a')) lastScan = performance.now()
    return false
  }
  if (!(await waitFor(scanUntilSupervised, reactionMs)))
    throw new Error(`s6 did not start to supervise service ${name}`)
}

/** Resets the restart count. When this resolves, the service has started, and may have ended again. */
async function startService(target: Target): Promise<void> {
  const { box, name, run } = target
  markDown(box, name, false)
  await ensureSupervised(target)
  const before = isUp(readStatus(run)) ? '' : readStartId(run)
  resetRestarts(run)
  if (!writePipe(run.run, run.control, 'u')) throw new Error(`start service ${name}: its supervisor is gone`)
  const hasStarted = () => {
    const status = readStatus(run)
    if (!status || readStartId(run) !== before || isUp(status)) return true
    // Its finish script waits before the next start.
    if (status.finishing) wake(run)
    return false
  }
  if (!(await waitFor(hasStarted, reactionMs))) throw new Error(`start service ${name}: it was not started`)
}

function isUp(status: SupervisedStatus | undefined): boolean {
  return status !== undefined && status.pid !== 0 && !status.finishing
}

function resetRestarts({ run, state, restarts }: RunPaths): void {
  try {
    withUntrustedDirectory(run, state, (directory) => unlinkSync(`${directory}/${basename(restarts)}`))
  } catch {
    // The file does not exist, or the box replaced it by a directory, which the finish script does not read either.
  }
}

/** The finish script needs this long at most to end the rest of the process group. */
const finishMs = 5_000
/** Most services end within this time; for the others, the rest of the process group is signalled as well. */
const promptMs = 40

/** Ends all processes of the service, which is not started with the box either until it is started again. */
async function stopService(
  { host, spec, box, name, run }: Target,
  { timeoutMs }: { timeoutMs: number },
): Promise<void> {
  if (!existsSync(`${box.paths.run}/${name}`)) return
  markDown(box, name, true)
  setStopTimeout(box, name, timeoutMs)
  if (!writePipe(run.run, run.control, 'd')) return
  const isDown = () => {
    const status = readStatus(run)
    if (status?.finishing) wake(run)
    return status === undefined || status.pid === 0
  }
  if (await waitFor(isDown, promptMs)) return
  const status = readStatus(run)
  if (status && !status.finishing) terminateGroup(host, spec, status.pid)
  if (await waitFor(isDown, timeoutMs + finishMs)) return
  throw new Error(`stop service ${name}: it survives SIGKILL`)
}

/** An image may have no shell, so the tools bring one. */
function shellOf({ image }: BoxSpec): string {
  return image ? `${toolPath}/sh` : '/bin/sh'
}

function terminateGroup(host: Host, spec: BoxSpec, group: number): void {
  const argv: [string, ...string[]] = [shellOf(spec), '-c', scriptText('terminate-group.sh'), 'sh', String(group)]
  const child = host.boxes.spawnInBox(spec, { argv, dir: '/' })
  // The stop does not depend on it.
  child.on('error', () => undefined)
}

/** The control commands of s6-supervise, by the signal that each sends. */
const controlLetters: Record<number, string> = {
  1: 'h',
  2: 'i',
  3: 'q',
  6: 'b',
  9: 'k',
  10: '1',
  12: '2',
  14: 'a',
  15: 't',
  18: 'c',
  19: 'p',
  28: 'y',
}

async function signalService({ host, spec, run }: Target, signal: number): Promise<boolean> {
  const found = inspectProcess(run, false)
  if (found.is !== 'up' || found.begunAtMs === undefined) return false
  const letter = controlLetters[signal]
  if (letter) return writePipe(run.run, run.control, letter)
  const argv: [string, ...string[]] = [shellOf(spec), '-c', 'kill "-$1" "$2"', 'sh', String(signal), String(found.pid)]
  const child = host.boxes.spawnInBox(spec, { argv, dir: '/' })
  return new Promise((resolve, reject) => {
    child.once('error', reject)
    child.once('close', (code) => resolve(code === 0))
  })
}

async function removeService(target: Target): Promise<void> {
  const { host, name } = target
  const { paths } = target.box
  await stopService(target, { timeoutMs: defaultStopMs })
  for (const entry of scannedEntries(name)) rmSync(`${paths.service}/${entry}`, { force: true })
  await endSupervision(paths.run, name)
  for (const entry of scannedEntries(name)) moveToTrash(host.home, `${paths.run}/${entry}`)
  moveToTrash(host.home, `${paths.log}/${name}`)
  emptyTrash(host.home)
}

async function endSupervision(runDirectory: string, name: string): Promise<void> {
  const parts: RunPaths[] = supervisedParts(name).map((part) => runPaths(runDirectory, part))
  const hasEnded = () => !parts.some((part) => writePipe(part.run, part.control))
  if (hasEnded()) return
  writePipe(runDirectory, scanControl, 'an')
  if (await waitFor(hasEnded, 1_000)) return
  // They were started by an earlier s6-svscan, so the present one does not know them.
  for (const part of parts) writePipe(part.run, part.control, 'xd')
  if (!(await waitFor(hasEnded, reactionMs))) throw new Error(`end the supervision of service ${name}`)
}
