import { dirname } from 'node:path'
import { findFreezer } from '../host/cgroup-freezer.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { MachinePaths } from './paths.ts'

/** Picks the group that limits memory, where the kernel also counts OOM kills. */
export function memoryGroup(procs: string[]): string | undefined {
  const groups = procs.map(dirname)
  return groups.find((group) => /\/memory\//.test(group)) ?? groups[0]
}

/** Returns the memory group that the machine was last started in. */
export function readMemoryGroup(paths: MachinePaths): string | undefined {
  return /^memory-group (.+)$/m.exec(readTextIfPresent(paths.config) ?? '')?.[1]
}

/** Returns the freezer group that the machine was last started in. */
export function readFreezer(paths: MachinePaths): string | undefined {
  const memory = readMemoryGroup(paths)
  return memory && findFreezer(`${memory}/cgroup.procs`)
}
