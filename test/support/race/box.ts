// What is so about the boxes of a platform, read from the host and not from the API.
import { execFileSync } from 'node:child_process'
import { existsSync, globSync, readdirSync, readFileSync } from 'node:fs'
import type { Berth } from '../berth.ts'

export interface BoxProcess {
  /** The pid inside the box. */
  pid: number
  args: string[]
  environment: string[]
}

export class BoxReality {
  private readonly berth: Berth

  constructor(berth: Berth) {
    this.berth = berth
  }

  /** The ids of everything on the host that belongs to a sandbox, with what it is. */
  traces(): Map<string, string[]> {
    const found = new Map<string, string[]>()
    const add = (id: string, what: string) => found.set(id, [...(found.get(id) ?? []), what])
    for (const id of list(`${this.berth.home}/sandbox`)) add(id, 'directory')
    for (const name of list(`${this.berth.home}/tree`)) {
      const id = /^(?:sandbox|checkpoint)-([a-z0-9]{16})/.exec(name)?.[1]
      if (id) add(id, `supervised ${name}`)
    }
    for (const group of globSync(`/sys/fs/cgroup/{,*/}berth-${this.number}-sandbox-*`))
      if (!group.includes('/freezer/')) add(group.slice(group.lastIndexOf('-') + 1), `control group ${group}`)
    return found
  }

  /** The processes of a box. Those that end meanwhile are left out. */
  processes(id: string): BoxProcess[] {
    const files = globSync(`/sys/fs/cgroup/{,*/}berth-${this.number}-sandbox-${id}/cgroup.procs`)
    const pids = new Set(files.flatMap((file) => read(file).split('\n').filter(Boolean)))
    return [...pids].flatMap((pid) => {
      const inner = /^NSpid:.*\t(\d+)$/m.exec(read(`/proc/${pid}/status`))?.[1]
      if (inner === undefined || /^State:\tZ/m.test(read(`/proc/${pid}/status`))) return []
      return [{ pid: Number(inner), args: words(`/proc/${pid}/cmdline`), environment: words(`/proc/${pid}/environ`) }]
    })
  }

  /** The names of the services that s6 supervises in the box. */
  services(id: string): string[] {
    return list(`${this.berth.home}/sandbox/${id}/service`).filter((name) => !/^\.|~/.test(name))
  }

  checkpoints(id: string): string[] {
    return list(`${this.berth.home}/sandbox/${id}/checkpoint`).filter((name) => /^v\d+$/.test(name))
  }

  /** The network policy as the box sees it. */
  shownPolicy(id: string): { rules: unknown[] } | undefined {
    const text = read(`${this.berth.home}/sandbox/${id}/shown/policy/network.json`)
    return text === '' ? undefined : JSON.parse(text)
  }

  /** Whether the kernel has a policy for the network interface of the box. */
  hasKernelPolicy(id: string): boolean {
    const link = /^link (\S+)$/m.exec(read(`${this.berth.home}/sandbox/${id}/box.conf`))?.[1]
    const policies = execFileSync('nft', ['list', 'map', 'inet', `berth-${this.number}`, 'policies'], {
      encoding: 'utf8',
    })
    return link !== undefined && policies.includes(`"${link}"`)
  }

  private get number(): string {
    return read(`${this.berth.home}/number`).trim()
  }
}

function list(directory: string): string[] {
  return existsSync(directory) ? readdirSync(directory) : []
}

/** Files of processes and boxes may go at any moment. */
function read(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

function words(file: string): string[] {
  return read(file).split('\0').slice(0, -1)
}
