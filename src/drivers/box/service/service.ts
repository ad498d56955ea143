// Services of a box, kept running by the s6 inside it. What it writes about them lies in directories of the box, which
// the host reads as what they are: the words of a stranger. It is told what to do through its own pipes.
import { existsSync, readdirSync, rmSync, unlinkSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Service, ServiceDefinition } from '../../../model/sandbox/service.ts'
import type { ServiceProcess } from '../../../model/sandbox/service-state.ts'
import type { Home } from '../../host/home.ts'
import { discard, sweepTrash } from '../../host/trash.ts'
import type { BoxDriver, BoxSpec } from '../driver.ts'
import { boxPaths, boxUid } from '../paths.ts'
import { toolPath } from '../tools.ts'
import {
  ensureFiles,
  ensureShutdown,
  markDown,
  type ServicePlace,
  scannedEntries,
  setStopTime,
  supervisedParts,
} from './files.ts'
import { openServiceLog, type ServiceLog } from './log.ts'
import { defaultStopMs } from './script.ts'
import {
  inspectProcess,
  lifeOf,
  type RunPaths,
  readStatus,
  runPaths,
  type SupervisedStatus,
  writePipe,
} from './status.ts'

export interface BoxServices {
  /** Starts no process and takes no time. */
  inspectService(boxId: string, service: Pick<Service, 'name' | 'health'>): ServiceProcess
  /** Its files say this afterwards; a process that runs goes on by what it was started with. */
  ensureDefinition(box: BoxSpec, service: Service, environment: Record<string, string>): void
  /** Told after every change of definitions, with all of them: in which order they end when the box stops. */
  setOrder(box: BoxSpec, services: readonly ServiceDefinition[]): void
  /** Counts restarts from zero. It has been started, or has ended already, afterwards. */
  startService(box: BoxSpec, name: string): Promise<void>
  /** One that failed and waits for its next start begins at once; restarts go on being counted. */
  hurryService(boxId: string, name: string): void
  /** Nothing of it runs afterwards. With `stay` it does not come back with the box either. */
  stopService(box: BoxSpec, name: string, options: { timeoutMs?: number; stay: boolean }): Promise<void>
  /** False when there is nothing to signal. */
  signalService(box: BoxSpec, name: string, signal: number): Promise<boolean>
  /** Nothing of it is left: no process, definition or log. */
  removeService(box: BoxSpec, name: string): Promise<void>
  listDefined(boxId: string): string[]
  openLog(boxId: string, name: string): ServiceLog
}

interface Host {
  home: Home
  boxes: Pick<BoxDriver, 'spawnInBox'>
}

export function boxServices(host: Host): BoxServices {
  const placeOf = (box: BoxSpec): ServicePlace => ({
    paths: boxPaths(host.home, box.id),
    uid: boxUid(host.home, box.slot),
    image: box.image,
  })
  return {
    inspectService: (boxId, { name, health }) =>
      inspectProcess(runPaths(boxPaths(host.home, boxId).run, name), health !== null),
    ensureDefinition: (box, service, environment) =>
      ensureFiles(placeOf(box), { definition: service, environment, down: !service.wanted }),
    setOrder: (box, services) => ensureShutdown(placeOf(box), services),
    startService: (box, name) => startService(placeOf(box), name),
    hurryService: (boxId, name) => void writePipe(runPaths(boxPaths(host.home, boxId).run, name).wake, '\n'),
    stopService: (box, name, options) => stopService(host, box, placeOf(box), name, options),
    signalService: (box, name, signal) => signalService(host, box, placeOf(box), name, signal),
    removeService: (box, name) => removeService(host, box, placeOf(box), name),
    listDefined: (boxId) => listDefined(boxPaths(host.home, boxId).service),
    openLog: (boxId, name) => openServiceLog(`${boxPaths(host.home, boxId).log}/${name}`),
  }
}

function listDefined(directory: string): string[] {
  if (!existsSync(directory)) return []
  return readdirSync(directory).filter((name) => !name.startsWith('.') && !name.includes('~'))
}

/** Short at first, because most things happen within milliseconds; then rare, because some take seconds. */
async function settles(holds: () => boolean, timeoutMs: number): Promise<boolean> {
  const deadline = performance.now() + timeoutMs
  for (let delay = 1; !holds(); delay = Math.min(delay * 1.3, 25)) {
    if (performance.now() > deadline) return false
    await sleep(delay)
  }
  return true
}

/** The supervisor takes them up within milliseconds, unless the machine is very busy. */
const takeUpMs = 10_000

async function ensureSupervised({ paths }: ServicePlace, name: string): Promise<void> {
  const parts = supervisedParts(name).map((part) => runPaths(paths.run, part))
  const isKnown = () => parts.every((part) => readStatus(part) !== undefined)
  if (isKnown()) return
  let lastAsked = 0
  const asked = () => {
    if (isKnown()) return true
    // A box that starts at this moment does not listen yet.
    if (performance.now() - lastAsked > 500 && writePipe(`${paths.run}/.s6-svscan/control`, 'a'))
      lastAsked = performance.now()
    return false
  }
  if (!(await settles(asked, takeUpMs))) throw new Error(`supervise service ${name}: it was not taken up`)
}

async function startService(place: ServicePlace, name: string): Promise<void> {
  const run = runPaths(place.paths.run, name)
  markDown(place, name, false)
  await ensureSupervised(place, name)
  const before = isUp(readStatus(run)) ? '' : lifeOf(run)
  forgetRestarts(run)
  if (!writePipe(run.control, 'u')) throw new Error(`start service ${name}: its supervisor is gone`)
  const hasStarted = () => {
    const status = readStatus(run)
    if (!status || lifeOf(run) !== before || isUp(status)) return true
    // The end of the life before is still being waited out.
    if (status.finishing) writePipe(run.wake, '\n')
    return false
  }
  if (!(await settles(hasStarted, takeUpMs))) throw new Error(`start service ${name}: it was not started`)
}

function isUp(status: SupervisedStatus | undefined): boolean {
  return status !== undefined && status.pid !== 0 && !status.finishing
}

function forgetRestarts({ restarts }: RunPaths): void {
  try {
    unlinkSync(restarts)
  } catch {
    // There were none, or the box made something else of it, which its own script does not read either.
  }
}

/** Time for what is left of the process group, which the supervisor ends after the process itself. */
const clearUpMs = 5_000
/** Most processes end at once; only for the others the rest of their group is asked as well. */
const promptMs = 40

async function stopService(
  host: Host,
  box: BoxSpec,
  place: ServicePlace,
  name: string,
  { timeoutMs = defaultStopMs, stay }: { timeoutMs?: number; stay: boolean },
): Promise<void> {
  if (!existsSync(`${place.paths.run}/${name}`)) return
  const run = runPaths(place.paths.run, name)
  if (stay) markDown(place, name, true)
  setStopTime(place, name, timeoutMs)
  if (!writePipe(run.control, 'd')) return
  const isDown = () => {
    const status = readStatus(run)
    if (status?.finishing) writePipe(run.wake, '\n')
    return status === undefined || status.pid === 0
  }
  if (await settles(isDown, promptMs)) return
  const status = readStatus(run)
  if (status && !status.finishing) terminateGroup(host, box, status.pid)
  if (await settles(isDown, timeoutMs + clearUpMs)) return
  throw new Error(`stop service ${name}: it survives SIGKILL`)
}

// The supervisor signals the process; a shell that waits for a child acts on the signal only when the child has ended.
const groupScript = `for file in /proc/[0-9]*/stat; do
  read -r line < "$file" || continue
  pid=\${file#/proc/} pid=\${pid%/stat}
  set -- "$1" \${line##*) }
  [ "$4" = "$1" ] && [ "$pid" != "$1" ] && kill -TERM "$pid"
done 2>/dev/null`

/** An image may have none, or one of its own. */
function shellOf({ image }: BoxSpec): string {
  return image ? `${toolPath}/sh` : '/bin/sh'
}

function terminateGroup(host: Host, box: BoxSpec, group: number): void {
  const child = host.boxes.spawnInBox(box, { argv: [shellOf(box), '-c', groupScript, 'sh', String(group)], dir: '/' })
  // The stop does not depend on it.
  child.on('error', () => undefined)
}

/** Signals that the supervisor sends by itself. */
const letters: Record<number, string> = {
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

async function signalService(
  host: Host,
  box: BoxSpec,
  place: ServicePlace,
  name: string,
  signal: number,
): Promise<boolean> {
  const run = runPaths(place.paths.run, name)
  const found = inspectProcess(run, false)
  if (found.is !== 'up' || found.begunAtMs === undefined) return false
  const letter = letters[signal]
  if (letter) return writePipe(run.control, letter)
  const argv: [string, ...string[]] = [shellOf(box), '-c', 'kill "-$1" "$2"', 'sh', String(signal), String(found.pid)]
  const child = host.boxes.spawnInBox(box, { argv, dir: '/' })
  return new Promise((resolve, reject) => {
    child.once('error', reject)
    child.once('close', (code) => resolve(code === 0))
  })
}

async function removeService(host: Host, box: BoxSpec, place: ServicePlace, name: string): Promise<void> {
  const { paths } = place
  await stopService(host, box, place, name, { stay: true })
  for (const entry of scannedEntries(name)) rmSync(`${paths.service}/${entry}`, { force: true })
  await endSupervision(paths.run, name)
  for (const entry of scannedEntries(name)) discard(host.home, `${paths.run}/${entry}`)
  discard(host.home, `${paths.log}/${name}`)
  sweepTrash(host.home)
}

async function endSupervision(runDirectory: string, name: string): Promise<void> {
  const parts: RunPaths[] = supervisedParts(name).map((part) => runPaths(runDirectory, part))
  const isFree = () => !parts.some((part) => writePipe(part.control))
  if (isFree()) return
  writePipe(`${runDirectory}/.s6-svscan/control`, 'an')
  if (await settles(isFree, 1_000)) return
  // The supervisor above them is another one than they were started by.
  for (const part of parts) writePipe(part.control, 'xd')
  if (!(await settles(isFree, takeUpMs))) throw new Error(`end the supervision of service ${name}`)
}
