// Freezes the processes of a control group. In version 2 every group can be frozen. Version 1 has a separate hierarchy
// for it, in which a frozen process does not end when it is killed until it is thawed.
import { existsSync, globSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import { waitUntil } from '../../model/poll.ts'
import { cgroupName } from './cgroup.ts'
import { readTextIfPresent } from './file.ts'
import type { Home } from './home.ts'
import { killProcess } from './process-list.ts'

/** Finds the group that freezes the processes of the group whose `cgroup.procs` file is given. */
export function findFreezer(members: string): string | undefined {
  const own = dirname(members)
  if (existsSync(`${own}/cgroup.freeze`)) return own
  const hierarchy = `${dirname(dirname(own))}/freezer`
  return existsSync(`${hierarchy}/cgroup.procs`) ? `${hierarchy}/${basename(own)}` : undefined
}

/** Creates the version 1 group if one is needed, and returns its `cgroup.procs` file for the processes to join. */
export function ensureFreezer(members: string[]): string[] {
  const group = members[0] === undefined ? undefined : findFreezer(members[0])
  if (group === undefined || group === dirname(members[0]!)) return []
  mkdirSync(group, { recursive: true })
  return [`${group}/cgroup.procs`]
}

const isV1 = (group: string) => existsSync(`${group}/freezer.state`)

export function isFrozen(group: string): boolean {
  if (isV1(group)) return readTextIfPresent(`${group}/freezer.state`)?.startsWith('FROZEN') ?? false
  return /^frozen 1$/m.test(readTextIfPresent(`${group}/cgroup.events`) ?? '')
}

export async function freeze(group: string): Promise<void> {
  const isStill = () => {
    // Writing again freezes processes that were being forked meanwhile.
    if (isV1(group)) writeFileSync(`${group}/freezer.state`, 'FROZEN')
    else writeFileSync(`${group}/cgroup.freeze`, '1')
    return isFrozen(group)
  }
  if (await waitUntil(isStill, 5)) return
  thaw(group)
  throw new Error(`freeze control group ${basename(group)}: its processes keep running`)
}

export function thaw(group: string): void {
  if (isV1(group)) writeFileSync(`${group}/freezer.state`, 'THAWED')
  else if (existsSync(`${group}/cgroup.freeze`)) writeFileSync(`${group}/cgroup.freeze`, '0')
}

export function removeFreezer(group: string): void {
  if (isV1(group)) rmdirSync(group)
}

/** Kills and thaws the frozen processes of a home, which would not end otherwise. */
export async function killFrozenProcesses(home: Home): Promise<void> {
  for (const group of globSync(`/sys/fs/cgroup/freezer/${cgroupName(home, 'machine-')}*`)) {
    if (!isFrozen(group)) continue
    const members = readFileSync(`${group}/cgroup.procs`, 'utf8').split('\n').filter(Boolean)
    for (const pid of members) killProcess(Number(pid), 'SIGKILL')
    thaw(group)
  }
}

/** Removes the version 1 groups of a home after its processes have ended. */
export async function removeFreezers(home: Home): Promise<void> {
  for (const group of globSync(`/sys/fs/cgroup/freezer/${cgroupName(home, 'machine-')}*`)) {
    await waitUntil(() => readTextIfPresent(`${group}/cgroup.procs`) === '', 5)
    removeFreezer(group)
  }
}
