// What a platform has on its host: files, control groups and processes, which may go at any moment.
import { existsSync, globSync, readdirSync, readFileSync } from 'node:fs'
import type { Berth } from '../berth.ts'

export interface BoxProcess {
  /** The pid on the host. */
  hostPid: number
  /** The pid inside the box. */
  pid: number
  args: string[]
  environment: string[]
}

export function list(directory: string): string[] {
  return existsSync(directory) ? readdirSync(directory) : []
}

/** Returns an empty text when the file is gone. */
export function read(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

export function homeNumber(berth: Berth): string {
  return read(`${berth.home}/number`).trim()
}

/** The ids of resources with what belongs to them on the host. */
export class Traces extends Map<string, string[]> {
  add(id: string, what: string): void {
    this.set(id, [...(this.get(id) ?? []), what])
  }

  /** Those of resources that do not exist. */
  strangers(known: readonly string[]): [string, string[]][] {
    return [...this].filter(([id]) => !known.includes(id))
  }
}

/** What the host has of boxes of one kind: directories, services with these names, whose first group is the id, and control groups. */
export function tracesOfBoxes(berth: Berth, kind: 'sandbox' | 'machine', serviceName: RegExp): Traces {
  const found = new Traces()
  for (const id of list(`${berth.home}/${kind}`)) found.add(id, 'directory')
  for (const name of list(`${berth.home}/tree`)) {
    const id = serviceName.exec(name)?.[1]
    if (id) found.add(id, `supervised ${name}`)
  }
  for (const { id, group } of groupsOf(berth, kind)) found.add(id, `control group ${group}`)
  return found
}

/** The control groups of boxes of one kind, by id. Those of the freezer are removed later than the others. */
function groupsOf(berth: Berth, kind: 'sandbox' | 'machine'): { id: string; group: string }[] {
  return globSync(`/sys/fs/cgroup/{,*/}berth-${homeNumber(berth)}-${kind}-*`)
    .filter((group) => !group.includes('/freezer/'))
    .map((group) => ({ id: group.slice(group.lastIndexOf('-') + 1), group }))
}

/** The processes of a box. Those that end meanwhile are left out. */
export function processesOfBox(berth: Berth, kind: 'sandbox' | 'machine', id: string): BoxProcess[] {
  const files = globSync(`/sys/fs/cgroup/{,*/}berth-${homeNumber(berth)}-${kind}-${id}/cgroup.procs`)
  const pids = new Set(files.flatMap((file) => read(file).split('\n').filter(Boolean)))
  return [...pids].flatMap((pid) => {
    const status = read(`/proc/${pid}/status`)
    const inner = /^NSpid:.*\t(\d+)$/m.exec(status)?.[1]
    if (inner === undefined || /^State:\tZ/m.test(status)) return []
    const [args, environment] = [words(`/proc/${pid}/cmdline`), words(`/proc/${pid}/environ`)]
    return [{ hostPid: Number(pid), pid: Number(inner), args, environment }]
  })
}

function words(file: string): string[] {
  return read(file).split('\0').slice(0, -1)
}
