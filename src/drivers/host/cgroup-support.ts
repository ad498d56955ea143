// Which control groups the host has, and which of them this process may use.
import { existsSync } from 'node:fs'
import { readLinesIfPossible } from './file.ts'
import { canWrite } from './filesystem.ts'

/** `writable` lists the controllers whose groups this process may create. */
export type ControlGroups = { kind: 'v2' | 'v1' | 'none'; controllers: string[]; writable: string[] }

export function inspectControlGroups(proc = '/proc/self'): ControlGroups {
  const mounts = readMounts(proc)
  const memberships = parseMemberships(readLinesIfPossible(`${proc}/cgroup`))
  const v1 = inspectV1(mounts, memberships)
  // On hybrid hosts there is a version 2 hierarchy as well, but without these controllers.
  if (v1.controllers.length > 0) return v1
  const unified = mounts.find(([, , type]) => type === 'cgroup2')?.[1]
  if (unified === undefined) return { kind: 'none', controllers: [], writable: [] }
  const directory = groupDirectory(unified, memberships.get(''))
  const controllers = (readLinesIfPossible(`${directory}/cgroup.controllers`)[0] ?? '').split(' ').filter(Boolean)
  const isWritable = canWrite(directory) && canWrite(`${directory}/cgroup.procs`)
  return { kind: 'v2', controllers, writable: isWritable ? controllers : [] }
}

/** Whether the host has swap, and whether it can be limited for each group. */
export function inspectSwap(proc = '/proc'): { present: boolean; limited: boolean } {
  const groups = inspectControlGroups(`${proc}/self`)
  const memory = findV1Mount(readMounts(`${proc}/self`), 'memory')
  // Version 1 accounts for swap only with the kernel option swapaccount.
  const isCounted = groups.kind === 'v2' || existsSync(`${memory}/memory.memsw.limit_in_bytes`)
  const isPresent = readLinesIfPossible(`${proc}/swaps`).length > 1
  return { present: isPresent, limited: groups.writable.includes('memory') && isCounted }
}

const v1Controllers = ['cpu', 'memory', 'pids', 'cpuset', 'blkio', 'freezer', 'devices']

function inspectV1(mounts: string[][], memberships: Map<string, string>): ControlGroups {
  const found = v1Controllers.flatMap((controller) => {
    const mount = findV1Mount(mounts, controller)
    return mount ? [{ controller, directory: groupDirectory(mount, memberships.get(controller)) }] : []
  })
  const writable = found.filter(({ directory }) => canWrite(directory))
  const names = (groups: typeof found) => groups.map(({ controller }) => controller)
  return { kind: 'v1', controllers: names(found), writable: names(writable) }
}

function readMounts(proc: string): string[][] {
  return readLinesIfPossible(`${proc}/mounts`).map((line) => line.split(' '))
}

function findV1Mount(mounts: string[][], controller: string): string | undefined {
  return mounts.find(([, , type, options]) => type === 'cgroup' && options?.split(',').includes(controller))?.[1]
}

/** Parses lines such as `4:cpu,cpuacct:/path` into paths by controller. The line of version 2 has no controllers. */
function parseMemberships(lines: string[]): Map<string, string> {
  const groups = lines.map((line) => /^\d+:([^:]*):(.*)$/.exec(line)).filter((match) => match !== null)
  return new Map(groups.flatMap(([, names = '', path = '']) => names.split(',').map((one) => [one, path] as const)))
}

// In a container the path may be relative to the host's root, which is not mounted here.
function groupDirectory(mount: string, path = '/'): string {
  const directory = `${mount}${path}`
  return existsSync(directory) ? directory : mount
}
