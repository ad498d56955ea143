import { existsSync, readdirSync } from 'node:fs'
import { dirname } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { keyedQueue } from '../../model/keyed-queue.ts'
import { type CgroupDriver, cgroupName } from '../host/cgroup.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'
import { findCommand, isRoot, waitUntil } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { discard, sweepTrash } from '../host/trash.ts'
import type { ImageStore } from '../image/store.ts'
import type { ServiceSpec } from '../s6/service-directory.ts'
import type { Supervisor } from '../s6/supervisor.ts'
import { type BoxBase, ensureBase } from './base.ts'
import { type BoxMaking, ensureFilter, filterFile, openForRemoval, prepareDisk, readMaking } from './disk.ts'
import type { BoxDriver, BoxImage, BoxSpec, BoxState } from './driver.ts'
import { type Entrance, renderEntry, requestOf } from './enter/enter.ts'
import { enterSpares } from './enter/spare.ts'
import { boxNetwork, ensureRules, removeLink } from './network.ts'
import { type BoxPaths, boxPaths, boxUid, innerPaths, innerPathsOf } from './paths.ts'
import { ensurePolicy, policiesPossible, removePolicy } from './policy.ts'
import { abilityOf, type BoxAbility } from './probe.ts'
import { findFirstProcess, findSupervised } from './process.ts'
import { ensureTools, toolPath } from './tools.ts'

export interface BoxOptions {
  home: Home
  supervisor: Supervisor
  cgroups: CgroupDriver
  /** What this machine is taken to be able to do, instead of trying. */
  ability?: BoxAbility
  /** Where the images lie that boxes are made from. */
  images?: Pick<ImageStore, 'findImage'>
  /** Whom the resolvers of boxes with a policy ask; those of the host otherwise. */
  upstreams?: string[]
}

type BoxHost = BoxOptions & { able: () => Promise<BoxAbility> }

/** Services inside get this long to end when their box stops. */
const stopSeconds = 10
const startSeconds = 20

export function boxDriver(options: BoxOptions): BoxDriver {
  const { home, supervisor, cgroups } = options
  const host: BoxHost = {
    ...options,
    able: async () => options.ability ?? abilityOf(home, cgroups.cgroupsAvailable()),
  }
  const starting = new Map<string, { spec: BoxSpec; running: Promise<void> }>()
  // A start in the middle of a stop would undo it, and the stop would wait in vain.
  const inTurn = keyedQueue()
  const spares = enterSpares()
  return {
    isolation: async () => (await host.able()).isolation,
    policiesPossible,
    ensureBox(spec) {
      // Whoever asks for the same waits for the same; another policy or limit has its own turn.
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
    spawnInBox: (spec, command) => spares.start(requestOf(entranceOf(host, spec), command, false)),
    entry: (spec, command) => renderEntry(entranceOf(host, spec), command, true),
    addressOf: (spec) => readMaking(boxPaths(home, spec.id))?.address ?? '127.0.0.1',
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
  if (inspectBox(home, spec.id).is === 'up') return ensurePolicy(host, spec)
  const paths = boxPaths(home, spec.id)
  const ability = await host.able()
  await prepareBox(host, spec, ability, cgroup)
  await ensurePolicy(host, spec)
  await supervisor.ensureService(paths.supervisedName, renderService(home, spec, ability, cgroup))
  if (await waitUntil(() => inspectBox(home, spec.id).is === 'up', startSeconds)) return
  throw new Error(`start the box ${spec.id}: ${supervisor.readLog(paths.supervisedName, 10).join('\n')}`)
}

async function prepareBox(host: BoxHost, spec: BoxSpec, ability: BoxAbility, cgroup: string[]): Promise<void> {
  const { home } = host
  const base = await ensureBase(home)
  const image = spec.image && (await prepareImage(host, spec.image, ability, base))
  const shell = image ? [`${toolPath}/sh`, `${toolPath}/s6-svscan`] : ['/bin/sh', 's6-svscan']
  prepareDisk(boxPaths(home, spec.id), spec, {
    way: ability.way,
    base,
    filter: ensureFilter(home),
    uid: boxUid(home, spec.slot),
    network: ability.network ? { ...boxNetwork(home, spec.slot), rules: ensureRules(home) } : undefined,
    limits: readLimits(cgroup),
    command: [shell[0]!, '-c', first, 'sh', spec.hostname, innerPaths.service, shell[1]!],
    ...(image && { image }),
  })
}

async function prepareImage(
  { images }: BoxHost,
  { digest, workingDir }: BoxImage,
  { way, why }: BoxAbility,
  base: BoxBase,
): Promise<BoxMaking['image']> {
  if (way === 'none') throw new Error(`an image needs namespaces to be mounted in, and ${why ?? 'there are none'}`)
  const image = digest === null ? undefined : await images?.findImage(digest)
  if (!image) throw new Error('its image has not been pulled')
  // What a line cannot hold is left to whoever starts there to find missing.
  const dir = /^\/[^\n]*$/.test(workingDir) ? workingDir : ''
  return { layers: image.layers, tools: await ensureTools(base), dir }
}

// The name of the machine stands in files that the box may change, so that the box writes them, before anything runs.
const first = [
  'read -r name < /etc/hostname',
  'if [ "$name" != "$1" ]; then echo "$1" > /etc/hostname',
  'printf "127.0.0.1 localhost %s\\n::1 ip6-localhost ip6-loopback\\n" "$1" > /etc/hosts; fi',
  'exec "$3" "$2"',
].join('; ')

// Nothing in it changes with a newer version of this program or of the base: a box that runs is not started anew.
function renderService(home: Home, spec: BoxSpec, ability: BoxAbility, cgroup: string[]): ServiceSpec {
  const paths = boxPaths(home, spec.id)
  const common = { stopTimeoutSeconds: stopSeconds, cgroup }
  if (ability.way !== 'none')
    return { ...common, command: [findCommand('perl') ?? 'perl', driverProgram('box/start.pl'), paths.config] }
  const uid = boxUid(home, spec.slot)
  return { ...common, command: ['s6-svscan', paths.service], uid, env: { HOME: innerPathsOf('none', paths).home } }
}

const limitFiles = /^(memory\.((memsw\.)?limit_in_bytes|(swap\.)?max)|cpu\.(cfs_period_us|cfs_quota_us|max)|pids\.max)$/

/** As they stand in the groups now, for a start after a reboot took the groups away: memory before memory and swap. */
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
  return readMaking(paths)?.way === 'none' ? findSupervised(service) : findFirstProcess(service)
}

async function removeBox({ home, supervisor, cgroups }: BoxHost, spec: BoxSpec): Promise<void> {
  const paths = boxPaths(home, spec.id)
  await supervisor.removeService(paths.supervisedName)
  await removePolicy({ home, supervisor }, spec)
  if (isRoot()) await removeLink(boxNetwork(home, spec.slot).link)
  await cgroups.removeCgroup(cgroupOf(home, spec.id))
  await openForRemoval(paths)
  discard(home, paths.directory)
  sweepTrash(home)
}

function entranceOf({ home, cgroups }: BoxHost, spec: BoxSpec): Entrance {
  const paths = boxPaths(home, spec.id)
  const way = readMaking(paths)?.way
  if (way === undefined) throw new Error(`there is no box ${spec.id}`)
  return {
    way,
    service: serviceOf(home, spec.id),
    uid: boxUid(home, spec.slot) ?? process.getuid!(),
    cgroup: cgroups.findCgroup(cgroupOf(home, spec.id)),
    filter: filterFile(home),
    isMinimal: spec.isMinimal ?? false,
    home: innerPathsOf(way === 'none' ? 'none' : 'bubblewrap', paths).home,
    ...(spec.image && { image: spec.image }),
    // Where nothing else holds the processes of a box together, those that entered are found by it.
    env: way === 'none' ? { BERTH_SERVICE: serviceOf(home, spec.id) } : {},
  }
}
