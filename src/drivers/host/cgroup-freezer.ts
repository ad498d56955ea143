// Holding the processes of a control group still. In version 2 every group can; version 1 has a hierarchy of its own for
// it, in which a process that is held still does not even end when it is killed.
import { existsSync, globSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import { waitUntil } from '../../model/poll.ts'
import { cgroupName } from './cgroup.ts'
import { readTextIfPresent } from './file.ts'
import type { Home } from './home.ts'
import { killProcess } from './process-list.ts'

/** The group that holds still those of a group with limits, given by one of its files `cgroup.procs`. */
export function findFreezer(members: string): string | undefined {
  const own = dirname(members)
  if (existsSync(`${own}/cgroup.freeze`)) return own
  const hierarchy = `${dirname(dirname(own))}/freezer`
  return existsSync(`${hierarchy}/cgroup.procs`) ? `${hierarchy}/${basename(own)}` : undefined
}

/** Made when it is one of its own; the answer is the further file to join, if there is one. */
export function ensureFreezer(members: string[]): string[] {
  const group = members[0] === undefined ? undefined : findFreezer(members[0])
  if (group === undefined || group === dirname(members[0]!)) return []
  mkdirSync(group, { recursive: true })
  return [`${group}/cgroup.procs`]
}

const isFirst = (group: string) => existsSync(`${group}/freezer.state`)

export function isFrozen(group: string): boolean {
  if (isFirst(group)) return readTextIfPresent(`${group}/freezer.state`)?.startsWith('FROZEN') ?? false
  return /^frozen 1$/m.test(readTextIfPresent(`${group}/cgroup.events`) ?? '')
}

export async function freeze(group: string): Promise<void> {
  const stands = () => {
    // Once more each time: a process that was being made meanwhile is caught by the next look.
    if (isFirst(group)) writeFileSync(`${group}/freezer.state`, 'FROZEN')
    else writeFileSync(`${group}/cgroup.freeze`, '1')
    return isFrozen(group)
  }
  if (await waitUntil(stands, 5)) return
  thaw(group)
  throw new Error(`hold the processes of ${basename(group)} still: they go on`)
}

export function thaw(group: string): void {
  if (isFirst(group)) writeFileSync(`${group}/freezer.state`, 'THAWED')
  else if (existsSync(`${group}/cgroup.freeze`)) writeFileSync(`${group}/cgroup.freeze`, '0')
}

export function removeFreezer(group: string): void {
  if (isFirst(group)) rmdirSync(group)
}

/** For the end of everything that runs in a home: what is held still is killed, and then let go of. */
export async function endFrozen(home: Home): Promise<void> {
  for (const group of globSync(`/sys/fs/cgroup/freezer/${cgroupName(home, 'machine-')}*`)) {
    if (!isFrozen(group)) continue
    const members = readFileSync(`${group}/cgroup.procs`, 'utf8').split('\n').filter(Boolean)
    for (const pid of members) killProcess(Number(pid), 'SIGKILL')
    thaw(group)
  }
}

/** Groups of version 1 that are left when everything has ended. */
export async function removeFreezers(home: Home): Promise<void> {
  for (const group of globSync(`/sys/fs/cgroup/freezer/${cgroupName(home, 'machine-')}*`)) {
    await waitUntil(() => readTextIfPresent(`${group}/cgroup.procs`) === '', 5)
    removeFreezer(group)
  }
}
