// Limits for the processes of a cluster or box, where the host allows them: in the single hierarchy of cgroup version
// 2, or in the version 1 hierarchies for memory, cpu and pids. Groups are created below the root of a hierarchy (for an
// ordinary user, below the delegated group), not below the platform's own group, so they outlive the process that
// created them.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { waitUntil } from '../../model/poll.ts'
import type { CgroupDriver, CgroupLimits } from './driver.ts'
import { readTextIfPresent } from './file.ts'
import { canWrite } from './filesystem.ts'
import type { Home } from './home.ts'

export type { CgroupDriver, CgroupLimits } from './driver.ts'

const controllers = ['memory', 'cpu', 'pids'] as const
type Controller = (typeof controllers)[number]
type Group = { directory: string; files: (limits: CgroupLimits) => Record<string, string> }

const periodMicros = 100_000

export function cgroupName(home: Home, id: string): string {
  return `berth-${home.number}-${id}`
}

export function cgroupDriver(root = '/sys/fs/cgroup', membershipFile = '/proc/self/cgroup'): CgroupDriver {
  const groups = (name: string) => findGroups(root, membershipFile, name)
  const findCgroup = (name: string) => groups(name).map(({ directory }) => `${directory}/cgroup.procs`)
  return {
    cgroupsAvailable: () => groups('probe').length > 0,
    ensureCgroup(name, limits) {
      for (const { directory, files } of groups(name)) ensureGroup(directory, files(limits))
      return findCgroup(name)
    },
    findCgroup,
    listCgroups: () => [...new Set(groups('probe').flatMap(({ directory }) => readdirSync(dirname(directory))))],
    async removeCgroup(name) {
      for (const { directory } of groups(name)) await removeGroup(name, directory)
    },
  }
}

/** Removes every group of a home. Their processes must have ended; a start creates its groups again. */
export async function removeCgroups(home: Home, driver: CgroupDriver = cgroupDriver()): Promise<void> {
  const prefix = cgroupName(home, '')
  for (const name of driver.listCgroups().filter((known) => known.startsWith(prefix))) await driver.removeCgroup(name)
}

function ensureGroup(directory: string, files: Record<string, string>): void {
  mkdirSync(directory, { recursive: true })
  if (files[memoryLimitFile]) liftSwapLimit(directory, files[swapLimitFile.v1])
  for (const [file, value] of Object.entries(files)) {
    const before = readTextIfPresent(`${directory}/${file}`)
    if (before === undefined && isSwapLimitFile(file)) continue // the kernel does not account for swap
    if (before?.trim() !== value) writeFileSync(`${directory}/${file}`, value)
  }
}

/** The version 1 limits. The one for swap includes memory, so the kernel rejects a higher limit for memory alone. */
export const memoryLimitFile = 'memory.limit_in_bytes'
export const swapLimitFile = { v1: 'memory.memsw.limit_in_bytes', v2: 'memory.swap.max' }
const isSwapLimitFile = (file: string) => Object.values(swapLimitFile).includes(file)
/** Without a limit the kernel reports a little less than 2^63. */
const unlimited = 2 ** 62

function liftSwapLimit(directory: string, wanted: string | undefined): void {
  const before = readSwapLimit(directory)
  if (before !== undefined && String(before) !== wanted) writeFileSync(`${directory}/${swapLimitFile.v1}`, '-1')
}

/** Reads the version 1 limit for memory and swap together; undefined if there is none. */
export function readSwapLimit(directory: string): number | undefined {
  const bytes = Number(readTextIfPresent(`${directory}/${swapLimitFile.v1}`) ?? unlimited)
  return bytes < unlimited ? bytes : undefined
}

// The kernel keeps a group busy while it has processes, and a killed process stays in it until its parent has reaped
// it.
async function removeGroup(name: string, directory: string): Promise<void> {
  const isGone = () => {
    try {
      rmdirSync(directory)
      return true
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'EBUSY') return false
      if (code === 'ENOENT') return true
      throw error
    }
  }
  if (!(await waitUntil(isGone, 5))) throw new Error(`remove control group ${name}: it still has processes`)
}

function findGroups(root: string, membershipFile: string, name: string): Group[] {
  if (existsSync(`${root}/cgroup.controllers`)) return findUnified(root, membershipFile, name)
  return controllers
    .filter((controller) => canWrite(`${root}/${controller}`))
    .map((controller) => ({
      directory: `${root}/${controller}/${name}`,
      files: (limits) => v1Files[controller](limits),
    }))
}

function findUnified(root: string, membershipFile: string, name: string): Group[] {
  // An ordinary user may move processes only within the delegated part of the hierarchy.
  const membership = /^0::(.*)$/m.exec(readFileSync(membershipFile, 'utf8'))?.[1] ?? '/'
  const parent = [root, `${root}${dirname(membership)}`].find(canHoldGroups)
  if (parent === undefined) return []
  const present = readWords(`${parent}/cgroup.subtree_control`)
  const files = (limits: CgroupLimits) =>
    Object.assign({}, ...controllers.filter((one) => present.includes(one)).map((one) => v2Files[one](limits)))
  return [{ directory: `${parent}/${name}`, files }]
}

function canHoldGroups(parent: string): boolean {
  if (!canWrite(parent)) return false
  const missing = controllers.filter((one) => !readWords(`${parent}/cgroup.subtree_control`).includes(one))
  const possible = missing.filter((one) => readWords(`${parent}/cgroup.controllers`).includes(one))
  for (const controller of possible) enable(parent, controller)
  return readWords(`${parent}/cgroup.subtree_control`).includes('memory')
}

// The kernel refuses if the group itself has processes. Such a group cannot hold limited groups.
function enable(parent: string, controller: Controller): void {
  try {
    writeFileSync(`${parent}/cgroup.subtree_control`, `+${controller}`)
  } catch {}
}

function readWords(file: string): string[] {
  return readTextIfPresent(file)?.trim().split(/\s+/) ?? []
}

const bytes = (memoryMb: number) => String(memoryMb * 1024 * 1024)
const quota = (cpus: number) => String(Math.round(cpus * periodMicros))
// Weights matter when the host is out of CPU time. By default a group of any size weighs as much as one process
// outside.
const weight = (cpus: number, ofOneCpu: number) => String(Math.min(10_000, Math.max(2, Math.round(cpus * ofOneCpu))))

const v1Files: Record<Controller, (limits: CgroupLimits) => Record<string, string>> = {
  memory: ({ memoryMb, swapMb }) => ({
    [memoryLimitFile]: bytes(memoryMb),
    ...(swapMb !== undefined && { [swapLimitFile.v1]: bytes(memoryMb + swapMb) }),
  }),
  cpu: ({ cpus }) => ({
    'cpu.cfs_period_us': String(periodMicros),
    'cpu.cfs_quota_us': quota(cpus),
    'cpu.shares': weight(cpus, 1024),
  }),
  pids: ({ pids }) => ({ 'pids.max': String(pids) }),
}

const v2Files: typeof v1Files = {
  memory: ({ memoryMb, swapMb }) => ({
    'memory.max': bytes(memoryMb),
    [swapLimitFile.v2]: swapMb === undefined ? 'max' : bytes(swapMb),
  }),
  cpu: ({ cpus }) => ({ 'cpu.max': `${quota(cpus)} ${periodMicros}`, 'cpu.weight': weight(cpus, 100) }),
  pids: ({ pids }) => ({ 'pids.max': String(pids) }),
}
