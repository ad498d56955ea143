import { spawn } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { dirname } from 'node:path'
import type { BoxDriver, BoxSpec, BoxState, Isolation } from './box.ts'
import { ensureBase } from './box-base.ts'
import { ensureFilter, prepareDisk, readWay } from './box-disk.ts'
import { type BoxWay, type Entrance, renderEntry } from './box-enter.ts'
import { boxNetwork, ensureNetwork, removeLink } from './box-network.ts'
import { boxPaths, innerPathsOf } from './box-paths.ts'
import { findFirstProcess, findSupervised } from './box-process.ts'
import { type CgroupDriver, cgroupName } from './cgroup.ts'
import { readTextIfPresent } from './file.ts'
import type { Home } from './home.ts'
import { findCommand, isRoot, waitUntil } from './process.ts'
import type { Supervisor } from './supervisor.ts'
import { discard, sweepTrash } from './trash.ts'

export interface BoxHost {
  home: Home
  supervisor: Supervisor
  cgroups: CgroupDriver
}

/** Services inside get this long to end when their box stops. */
const stopSeconds = 10
const startSeconds = 20

export function boxDriver(host: BoxHost): BoxDriver {
  const { home, supervisor } = host
  const starting = new Map<string, Promise<void>>()
  return {
    isolation: async () => describe(await findWay(host)),
    ensureBox(spec) {
      const running = starting.get(spec.id) ?? ensureBox(host, spec).finally(() => starting.delete(spec.id))
      starting.set(spec.id, running)
      return running
    },
    inspectBox: async (id) => inspectBox(home, id),
    stopBox: (id) => supervisor.stopService(boxPaths(home, id).supervisedName),
    removeBox: (spec) => removeBox(host, spec),
    spawnInBox(spec, command) {
      const { program, args, env } = renderEntry(entranceOf(host, spec), command, false)
      return spawn(program, args, { env, cwd: '/', stdio: 'pipe' })
    },
    entry: (spec, command) => renderEntry(entranceOf(host, spec), command, true),
    addressOf: (spec) => (wayOf(home, spec.id) === 'full' ? boxNetwork(home, spec.slot).address : '127.0.0.1'),
  }
}

async function findWay(_host: BoxHost): Promise<BoxWay> {
  return isRoot() ? 'full' : 'single'
}

function describe(way: BoxWay): Isolation {
  return { kind: way === 'none' ? 'none' : 'bubblewrap' }
}

function serviceOf(home: Home, id: string): string {
  return `${home.tree}/${boxPaths(home, id).supervisedName}`
}

function wayOf(home: Home, id: string): BoxWay {
  const way = readWay(boxPaths(home, id))
  if (way === undefined) throw new Error(`there is no box ${id}`)
  return way
}

function uidOf(home: Home, slot: number): number {
  return isRoot() ? home.uidStart + slot * 65_536 : process.getuid!()
}

async function ensureBox(host: BoxHost, spec: BoxSpec): Promise<void> {
  const { home, supervisor } = host
  const paths = boxPaths(home, spec.id)
  const cgroup = host.cgroups.ensureCgroup(cgroupOf(home, spec.id), spec.limits)
  if (inspectBox(home, spec.id).is === 'up') return
  const way = await findWay(host)
  const base = await ensureBase(home)
  const network = way === 'full' ? boxNetwork(home, spec.slot) : undefined
  if (network) await ensureNetwork(home)
  prepareDisk(paths, spec, {
    way,
    base,
    filter: ensureFilter(dirname(dirname(base.root))),
    uid: isRoot() ? uidOf(home, spec.slot) : undefined,
    network,
    limits: readLimits(cgroup),
  })
  await supervisor.ensureService(paths.supervisedName, {
    command: [findCommand('perl') ?? 'perl', script('box-start.pl'), paths.config],
    stopTimeoutSeconds: stopSeconds,
    cgroup,
  })
  if (await waitUntil(() => inspectBox(home, spec.id).is === 'up', startSeconds)) return
  throw new Error(`start the box ${spec.id}: ${supervisor.readLog(paths.supervisedName, 10).join('\n')}`)
}

function script(name: string): string {
  return new URL(`./${name}`, import.meta.url).pathname
}

function cgroupOf(home: Home, id: string): string {
  return cgroupName(home, `sandbox-${id}`)
}

const limitFiles = /^(memory\.(limit_in_bytes|max)|cpu\.(cfs_period_us|cfs_quota_us|max)|pids\.max)$/

/** As they stand in the groups now, for a start after the groups are gone. */
function readLimits(procs: string[]): Record<string, string> {
  const files = procs.map(dirname).flatMap((group) => readdirSync(group).map((file) => [group, file] as const))
  const wanted = files.filter(([, file]) => limitFiles.test(file)).map(([group, file]) => `${group}/${file}`)
  return Object.fromEntries(wanted.map((file) => [file, readTextIfPresent(file)?.trim() ?? '']))
}

function inspectBox(home: Home, id: string): BoxState {
  const service = serviceOf(home, id)
  if (!existsSync(boxPaths(home, id).directory)) return { is: 'absent' }
  const way = readWay(boxPaths(home, id))
  const pid = way === 'none' ? findSupervised(service) : findFirstProcess(service)
  return pid === undefined ? { is: 'down' } : { is: 'up', pid }
}

async function removeBox(host: BoxHost, spec: BoxSpec): Promise<void> {
  const { home, supervisor, cgroups } = host
  const paths = boxPaths(home, spec.id)
  await supervisor.removeService(paths.supervisedName)
  if (isRoot()) await removeLink(boxNetwork(home, spec.slot).link)
  await cgroups.removeCgroup(cgroupOf(home, spec.id))
  discard(home, paths.directory)
  sweepTrash(home)
}

function entranceOf(host: BoxHost, spec: BoxSpec): Entrance {
  const { home, cgroups } = host
  const way = wayOf(home, spec.id)
  const paths = boxPaths(home, spec.id)
  return {
    way,
    service: serviceOf(home, spec.id),
    uid: uidOf(home, spec.slot),
    cgroup: cgroups.ensureCgroup(cgroupOf(home, spec.id), spec.limits),
    filter: `${home.path}/sandbox-base/filter-${process.arch}`,
    home: innerPathsOf(way === 'none' ? 'none' : 'bubblewrap', paths).home,
  }
}
