// Limits for the processes of one cluster or box, where the kernel lets us set them: in the one hierarchy of version 2,
// or in those of version 1 that hold memory, cpu and pids. Groups have names of their own below the root of a hierarchy
// (or, for an ordinary user, below the group that was delegated to us), so that they outlive whoever made them.
import {
  accessSync,
  constants,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  writeFileSync,
} from 'node:fs'
import { dirname } from 'node:path'
import { waitUntil } from '../../model/poll.ts'
import { readTextIfPresent } from './file.ts'
import type { Home } from './home.ts'

export interface CgroupLimits {
  memoryMb: number
  /** Beside that; as much as there is when it is not given. */
  swapMb?: number
  cpus: number
  pids: number
}

export interface CgroupDriver {
  /** Whether there are limits of any kind on this machine. */
  cgroupsAvailable(): boolean
  /** Afterwards the group has these limits. The answer is for `ServiceSpec.cgroup`; empty when there are no groups. */
  ensureCgroup(name: string, limits: CgroupLimits): string[]
  /** The same for a group that is there already, whose limits stay as they are. */
  findCgroup(name: string): string[]
  /** The names of all groups beside which ours stand. */
  listCgroups(): string[]
  /** Waits a moment for processes that are about to end. */
  removeCgroup(name: string): Promise<void>
}

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

/** Every group of a home whose processes have all ended. They are made again when something starts. */
export async function removeCgroups(home: Home, driver: CgroupDriver = cgroupDriver()): Promise<void> {
  const prefix = cgroupName(home, '')
  for (const name of driver.listCgroups().filter((known) => known.startsWith(prefix))) await driver.removeCgroup(name)
}

function ensureGroup(directory: string, files: Record<string, string>): void {
  mkdirSync(directory, { recursive: true })
  if (files[memoryFile]) liftSwapLimit(directory, files[swapFile.first])
  for (const [file, value] of Object.entries(files)) {
    const before = readTextIfPresent(`${directory}/${file}`)
    if (before === undefined && isSwapFile(file)) continue // this kernel does not count it
    if (before?.trim() !== value) writeFileSync(`${directory}/${file}`, value)
  }
}

/** Version 1 counts swap together with memory, and refuses a limit of memory alone that is higher. */
export const memoryFile = 'memory.limit_in_bytes'
export const swapFile = { first: 'memory.memsw.limit_in_bytes', second: 'memory.swap.max' }
const isSwapFile = (file: string) => Object.values(swapFile).includes(file)
/** What is read where there is no limit is a little less than the highest number there is. */
const unlimited = 2 ** 62

function liftSwapLimit(directory: string, wanted: string | undefined): void {
  const before = readSwapLimit(directory)
  if (before !== undefined && String(before) !== wanted) writeFileSync(`${directory}/${swapFile.first}`, '-1')
}

/** Of memory and swap together in a group of version 1; undefined when there is none. */
export function readSwapLimit(directory: string): number | undefined {
  const bytes = Number(readTextIfPresent(`${directory}/${swapFile.first}`) ?? unlimited)
  return bytes < unlimited ? bytes : undefined
}

// The kernel refuses while a process is inside, and one that was killed is inside until it has been buried.
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
  if (!(await waitUntil(isGone, 5))) throw new Error(`remove the control group ${name}: processes live in it`)
}

function findGroups(root: string, membershipFile: string, name: string): Group[] {
  if (existsSync(`${root}/cgroup.controllers`)) return findUnified(root, membershipFile, name)
  return controllers
    .filter((controller) => isWritable(`${root}/${controller}`))
    .map((controller) => ({ directory: `${root}/${controller}/${name}`, files: (limits) => first[controller](limits) }))
}

function findUnified(root: string, membershipFile: string, name: string): Group[] {
  // An ordinary user may move processes only within the part of the tree that was given to him.
  const own = /^0::(.*)$/m.exec(readFileSync(membershipFile, 'utf8'))?.[1] ?? '/'
  const parent = [root, `${root}${dirname(own)}`].find(canHoldGroups)
  if (parent === undefined) return []
  const present = readWords(`${parent}/cgroup.subtree_control`)
  const files = (limits: CgroupLimits) =>
    Object.assign({}, ...controllers.filter((one) => present.includes(one)).map((one) => second[one](limits)))
  return [{ directory: `${parent}/${name}`, files }]
}

function canHoldGroups(parent: string): boolean {
  if (!isWritable(parent)) return false
  const missing = controllers.filter((one) => !readWords(`${parent}/cgroup.subtree_control`).includes(one))
  const possible = missing.filter((one) => readWords(`${parent}/cgroup.controllers`).includes(one))
  for (const controller of possible) enable(parent, controller)
  return readWords(`${parent}/cgroup.subtree_control`).includes('memory')
}

// Refused where processes live in the group itself: then it is no place for groups of ours.
function enable(parent: string, controller: Controller): void {
  try {
    writeFileSync(`${parent}/cgroup.subtree_control`, `+${controller}`)
  } catch {}
}

function readWords(file: string): string[] {
  return readTextIfPresent(file)?.trim().split(/\s+/) ?? []
}

function isWritable(directory: string): boolean {
  try {
    accessSync(directory, constants.W_OK)
    return true
  } catch {
    return false
  }
}

const bytes = (memoryMb: number) => String(memoryMb * 1024 * 1024)
const quota = (cpus: number) => String(Math.round(cpus * periodMicros))
// When there is not enough for all. By itself a group of any size counts as much as one process outside.
const share = (cpus: number, ofOne: number) => String(Math.min(10_000, Math.max(2, Math.round(cpus * ofOne))))

const first: Record<Controller, (limits: CgroupLimits) => Record<string, string>> = {
  memory: ({ memoryMb, swapMb }) => ({
    [memoryFile]: bytes(memoryMb),
    ...(swapMb !== undefined && { [swapFile.first]: bytes(memoryMb + swapMb) }),
  }),
  cpu: ({ cpus }) => ({
    'cpu.cfs_period_us': String(periodMicros),
    'cpu.cfs_quota_us': quota(cpus),
    'cpu.shares': share(cpus, 1024),
  }),
  pids: ({ pids }) => ({ 'pids.max': String(pids) }),
}

const second: typeof first = {
  memory: ({ memoryMb, swapMb }) => ({
    'memory.max': bytes(memoryMb),
    [swapFile.second]: swapMb === undefined ? 'max' : bytes(swapMb),
  }),
  cpu: ({ cpus }) => ({ 'cpu.max': `${quota(cpus)} ${periodMicros}`, 'cpu.weight': share(cpus, 100) }),
  pids: ({ pids }) => ({ 'pids.max': String(pids) }),
}
