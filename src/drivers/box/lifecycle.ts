import { existsSync, readdirSync } from 'node:fs'
import { dirname } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { keyedQueue } from '../../model/keyed-queue.ts'
import { waitUntil } from '../../model/poll.ts'
import type { BoxImage, BoxSpec } from '../../model/sandbox/box.ts'
import { innerPaths } from '../../model/sandbox/inner-paths.ts'
import { type Micros, nowMicros } from '../../model/time.ts'
import { cgroupName } from '../host/cgroup.ts'
import type { CgroupDriver } from '../host/driver.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'
import { findCommand } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { emptyTrash, moveToTrash } from '../host/trash.ts'
import type { ImageStore } from '../image/driver.ts'
import type { ServiceSpec, Supervisor } from '../s6/driver.ts'
import { type BoxBase, ensureBase } from './base.ts'
import { type BoxSetup, ensureFilter, filterFile, openForRemoval, prepareDisk, readSetup } from './disk.ts'
import { type BoxCommands, type BoxDriver, BoxStartError, type BoxState } from './driver.ts'
import { findCommandPath, findCommandPid, signalCommand } from './enter/command.ts'
import { type Entrance, enterRequest, renderEntry } from './enter/enter.ts'
import { startHelper } from './enter/helper.ts'
import { startSession } from './enter/session.ts'
import { ensureSocket, findSessions, removeSockets } from './enter/session-socket.ts'
import { enterSpares } from './enter/spare.ts'
import { boxNetwork, ensureRules, removeBoxNetwork } from './network.ts'
import { type BoxPaths, boxPaths, boxUid, innerPathsOf } from './paths.ts'
import { ensurePolicy, policiesPossible, removePolicy, waitForResolver } from './policy.ts'
import { readPorts } from './port.ts'
import { type BoxAbility, probeAbility } from './probe.ts'
import { findFirstProcess, findSupervised } from './process.ts'
import { findSlot, listBoxes, removeSlot, removeStray } from './stray.ts'
import { ensureTools, toolPath } from './tools.ts'

export interface BoxOptions {
  home: Home
  supervisor: Supervisor
  cgroups: CgroupDriver
  /** Assumed instead of probing the host. */
  ability?: BoxAbility
  images?: Pick<ImageStore, 'findImage'>
  /** Name servers for the resolvers of boxes with a network policy; by default those of the host. */
  upstreams?: string[]
}

type BoxHost = BoxOptions & { probeAbility: () => Promise<BoxAbility> }

/** The time that services have to end when their box stops. */
const stopSeconds = 10
const startSeconds = 20

export function boxDriver(options: BoxOptions): BoxDriver {
  const { home, supervisor, cgroups } = options
  const host: BoxHost = {
    ...options,
    probeAbility: async () => options.ability ?? probeAbility(home, cgroups.cgroupsAvailable()),
  }
  const starting = new Map<string, { spec: BoxSpec; running: Promise<void> }>()
  // Serializes starts and stops of a box: a start during a stop would undo it, and the stop would time out.
  const inTurn = keyedQueue()
  return {
    isolation: async () => (await host.probeAbility()).isolation,
    policiesPossible,
    ensureBox(spec) {
      // Calls with the same spec share one start; a changed policy or limit is applied by another.
      const joined = starting.get(spec.id)
      if (joined && isDeepStrictEqual(joined.spec, spec)) return joined.running
      const running = inTurn(spec.id, () => ensureBox(host, spec)).finally(() => {
        if (starting.get(spec.id)?.running === running) starting.delete(spec.id)
      })
      starting.set(spec.id, { spec, running })
      return running
    },
    inspectBox: async (id) => inspectBox(home, id),
    stopBox: (id) => inTurn(id, () => supervisor.stopService(boxPaths(home, id).supervisedName)),
    removeBox: (spec) => inTurn(spec.id, () => removeBox(host, spec)),
    listBoxes: () => listBoxes(host),
    findSlot: (id) => findSlot(home, id),
    removeStray: (id, { keepFiles }) => inTurn(id, () => removeStray(host, id, keepFiles)),
    removeSlot: (slot) => removeSlot(home, slot),
    addressOf: (spec) => readSetup(boxPaths(home, spec.id))?.address ?? '127.0.0.1',
    readPorts,
    ...boxCommands(host),
  }
}

function boxCommands(host: BoxHost): BoxCommands {
  const spares = enterSpares()
  const helperEntry = (spec: BoxSpec) => renderEntry(entranceOf(host, spec), { argv: ['helper'] })
  return {
    spawnInBox: (spec, command) => spares.start(enterRequest(entranceOf(host, spec), command)),
    startSession(spec, command, start, events) {
      const request = enterRequest(entranceOf(host, spec), command)
      return startSession(spares, request, ensureSocket(host.home, spec.id, start.id), start).follow(events)
    },
    findSessions: (onFound) => findSessions(host.home, onFound),
    signalCommand,
    findCommandPid,
    findCommandPath,
    startFileHelper: (spec, ...words) => startHelper(helperEntry(spec), 'box/file/file.pl', words),
    startDialHelper: (spec, { port, timeoutSeconds, targets }) =>
      startHelper(helperEntry(spec), 'box/enter/dial.pl', [String(port), String(timeoutSeconds), ...targets]),
  }
}

function serviceOf(home: Home, id: string): string {
  return `${home.tree}/${boxPaths(home, id).supervisedName}`
}

function cgroupOf(home: Home, id: string): string {
  return cgroupName(home, `sandbox-${id}`)
}

async function ensureBox(host: BoxHost, spec: BoxSpec): Promise<void> {
  const { home, supervisor } = host
  const cgroup = host.cgroups.ensureCgroup(cgroupOf(home, spec.id), spec.limits)
  if (inspectBox(home, spec.id).is === 'up') {
    await ensurePolicy(host, spec)
    return waitForResolver(home, spec)
  }
  const paths = boxPaths(home, spec.id)
  const ability = await host.probeAbility()
  await prepareBox(host, spec, ability, cgroup)
  await ensurePolicy(host, spec)
  const started = nowMicros()
  await supervisor.ensureService(paths.supervisedName, renderService(home, spec, ability, cgroup))
  await waitForStart(host, spec.id, started)
  await waitForResolver(home, spec)
}

/** s6 starts the first process again after a second, so an end that is not the fault of the box is made good. */
const maxFailures = 3

async function waitForStart({ home, supervisor }: BoxHost, id: string, started: Micros): Promise<void> {
  const name = boxPaths(home, id).supervisedName
  const ends = new Set<Micros>()
  const isDecided = async () => {
    if (inspectBox(home, id).is === 'up') return true
    const state = await supervisor.inspectService(name)
    if (state.is === 'down' && state.wanted && state.since > started) ends.add(state.since)
    return ends.size >= maxFailures
  }
  const isOnTime = await waitUntil(isDecided, startSeconds)
  if (inspectBox(home, id).is === 'up') return
  const log = supervisor.readLog(name, 10)
  if (!isOnTime) throw new Error(`start the box ${id}: ${log.join('\n')}`)
  // The next request tries again; meanwhile it must not start once a second.
  await supervisor.stopService(name)
  throw startError(log)
}

/** Only bwrap speaks of files in the box; other lines may name paths of the host. */
function startError(log: string[]): BoxStartError {
  const said = log.map((line) => /\bbwrap: (execvp [^\n]*)/.exec(line)?.[1]).findLast((line) => line !== undefined)
  return new BoxStartError(`its first process ends at once${said === undefined ? '' : ` (${said})`}`)
}

/** Writes everything that `start.pl` needs. */
async function prepareBox(host: BoxHost, spec: BoxSpec, ability: BoxAbility, cgroup: string[]): Promise<void> {
  const { home } = host
  const base = await ensureBase(home)
  const image = spec.image && (await prepareImage(host, spec.image, ability, base))
  const shell = image ? [`${toolPath}/sh`, `${toolPath}/s6-svscan`] : ['/bin/sh', 's6-svscan']
  prepareDisk(boxPaths(home, spec.id), spec, {
    mode: ability.mode,
    base,
    filter: ensureFilter(home),
    uid: boxUid(home, spec.slot),
    network: ability.network ? { ...boxNetwork(home, spec.slot), rules: ensureRules(home) } : undefined,
    limits: readLimits(cgroup),
    command: [shell[0]!, '-c', firstScript, 'sh', spec.hostname, innerPaths.service, shell[1]!],
    ...(image && { image }),
  })
}

async function prepareImage(
  { images }: BoxHost,
  { digest, workingDir }: BoxImage,
  { mode, why }: BoxAbility,
  base: BoxBase,
): Promise<BoxSetup['image']> {
  if (mode === 'none') throw new Error(`an image needs namespaces to be mounted in, and ${why ?? 'there are none'}`)
  const image = digest === null ? undefined : await images?.findImage(digest)
  if (!image) throw new Error('its image has not been pulled')
  // The config file is made of lines, so a path with a newline is dropped; commands then fail to start there.
  const dir = /^\/[^\n]*$/.test(workingDir) ? workingDir : ''
  return { layers: image.layers, tools: await ensureTools(base), dir }
}

// Writes the host name to /etc before any service runs. The box does this itself, because those files are in the layer
// that it may change, where the host must not follow links. It is one line, because the config file is made of lines.
const firstScript = [
  'read -r name < /etc/hostname',
  'if [ "$name" != "$1" ]; then echo "$1" > /etc/hostname',
  'printf "127.0.0.1 localhost %s\\n::1 ip6-localhost ip6-loopback\\n" "$1" > /etc/hosts; fi',
  'exec "$3" "$2"',
].join('; ')

// The definition does not depend on the version of the platform or of the base, so an upgrade does not restart boxes.
function renderService(home: Home, spec: BoxSpec, ability: BoxAbility, cgroup: string[]): ServiceSpec {
  const paths = boxPaths(home, spec.id)
  const common = { stopTimeoutSeconds: stopSeconds, cgroup }
  if (ability.mode !== 'none')
    return { ...common, command: [findCommand('perl') ?? 'perl', driverProgram('box/start.pl'), paths.config] }
  const uid = boxUid(home, spec.slot)
  return { ...common, command: ['s6-svscan', paths.service], uid, env: { HOME: innerPathsOf('none', paths).home } }
}

const limitFiles = /^(memory\.((memsw\.)?limit_in_bytes|(swap\.)?max)|cpu\.(cfs_period_us|cfs_quota_us|max)|pids\.max)$/

/** Reads the limits in force, which `start.pl` sets again after a reboot. Memory sorts before memory and swap, as needed. */
export function readLimits(procs: string[]): Record<string, string> {
  const files = procs.map(dirname).flatMap((group) =>
    readdirSync(group)
      .sort()
      .map((file) => [group, file] as const),
  )
  const wanted = files.filter(([, file]) => limitFiles.test(file)).map(([group, file]) => `${group}/${file}`)
  return Object.fromEntries(wanted.map((file) => [file, readTextIfPresent(file)?.trim() ?? '']))
}

function inspectBox(home: Home, id: string): BoxState {
  const paths = boxPaths(home, id)
  if (!existsSync(paths.directory)) return { is: 'absent' }
  const pid = findPid(home, id, paths)
  return pid === undefined ? { is: 'down' } : { is: 'up', pid }
}

function findPid(home: Home, id: string, paths: BoxPaths): number | undefined {
  const service = serviceOf(home, id)
  return readSetup(paths)?.mode === 'none' ? findSupervised(service) : findFirstProcess(service)
}

async function removeBox({ home, supervisor, cgroups }: BoxHost, spec: BoxSpec): Promise<void> {
  const paths = boxPaths(home, spec.id)
  await supervisor.removeService(paths.supervisedName)
  await removePolicy({ home, supervisor }, spec)
  await removeBoxNetwork(home, spec.slot)
  await cgroups.removeCgroup(cgroupOf(home, spec.id))
  removeSockets(home, spec.id)
  await openForRemoval(paths)
  moveToTrash(home, paths.directory)
  emptyTrash(home)
}

function entranceOf({ home, cgroups }: BoxHost, spec: BoxSpec): Entrance {
  const paths = boxPaths(home, spec.id)
  const mode = readSetup(paths)?.mode
  if (mode === undefined) throw new Error(`there is no box ${spec.id}`)
  return {
    mode,
    service: serviceOf(home, spec.id),
    uid: boxUid(home, spec.slot) ?? process.getuid!(),
    cgroup: cgroups.findCgroup(cgroupOf(home, spec.id)),
    filter: filterFile(home),
    isMinimal: spec.isMinimal ?? false,
    home: innerPathsOf(mode === 'none' ? 'none' : 'bubblewrap', paths).home,
    ...(spec.image && { image: spec.image }),
    // Without namespaces, the processes of a box are found by this variable.
    env: mode === 'none' ? { BERTH_SERVICE: serviceOf(home, spec.id) } : {},
  }
}
