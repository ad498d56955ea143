import { existsSync, readdirSync, readFileSync } from 'node:fs'

/** Returns, per cluster, the PSS of the server, the pooler, the receiver and their supervisors and loggers. */
export function clusterMemoryMb(ids: string[]): number[] {
  const processes = listProcesses()
  return ids.map((id) => {
    const roots = findSupervisors(processes, new RegExp(`^(pg|pooler|wal)-${id}(/log)?$`))
    if (roots.length !== 6) throw new Error(`cluster ${id} has ${roots.length} supervisors instead of 6`)
    return sumMb(findFamily(processes, roots))
  })
}

/** Returns the PSS of all processes of a sandbox or machine, outside and inside, except its program. */
export function boxMemoryMb(kind: 'sandbox' | 'machine', ids: string[], service: string[]): number[] {
  const processes = listProcesses()
  const isService = ({ command }: Process) => command.join(' ').trimEnd() === service.join(' ')
  return ids.map((id) => {
    const roots = findSupervisors(processes, new RegExp(`^${kind}-${id}(/log)?$`))
    if (roots.length !== 2) throw new Error(`${kind} ${id} has ${roots.length} supervisors instead of 2`)
    const family = findFamily(processes, roots)
    const rest = family.filter((process) => !isService(process))
    if (rest.length !== family.length - 1) throw new Error(`the program of ${kind} ${id} does not run`)
    return sumMb(rest)
  })
}

/** Returns the kernel memory of each control group (stacks, page tables, inodes), if the kernel accounts for it. */
export function kernelMemoryMb(kind: 'sandbox' | 'machine', ids: string[]): number[] {
  const parents = ['/sys/fs/cgroup/memory', '/sys/fs/cgroup'].filter((directory) => existsSync(directory))
  const groups = parents.flatMap((parent) => readdirSync(parent).map((name) => `${parent}/${name}`))
  return ids.flatMap((id) => groups.filter((group) => group.endsWith(`-${kind}-${id}`)).flatMap(readKernelMb))
}

function readKernelMb(group: string): number[] {
  const [first, second] = [`${group}/memory.kmem.usage_in_bytes`, `${group}/memory.stat`]
  const text = existsSync(first)
    ? readFileSync(first, 'utf8')
    : /^kernel (\d+)$/m.exec(readFileSync(second, 'utf8'))?.[1]
  return text === undefined ? [] : [Number(text) / 2 ** 20]
}

function findSupervisors(processes: Process[], service: RegExp): Process[] {
  return processes.filter(({ command }) => command[0]!.endsWith('s6-supervise') && service.test(command[1] ?? ''))
}

/** Returns these processes and all their descendants. */
function findFamily(processes: Process[], roots: Process[]): Process[] {
  const family = new Set(roots.map(({ pid }) => pid))
  // A parent may have a higher pid than its child, so this repeats until no more children are found.
  for (let size = 0; size < family.size; ) {
    size = family.size
    for (const { pid, parent } of processes) if (family.has(parent)) family.add(pid)
  }
  return processes.filter(({ pid }) => family.has(pid))
}

function sumMb(processes: Process[]): number {
  return processes.reduce((sum, { pid }) => sum + proportionalMb(pid), 0)
}

interface Process {
  pid: number
  parent: number
  command: string[]
}

function listProcesses(): Process[] {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  return pids.flatMap((pid) => {
    try {
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
      const parent = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1])
      return [{ pid: Number(pid), parent, command: readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0') }]
    } catch {
      return [] // the process has ended
    }
  })
}

function proportionalMb(pid: number): number {
  try {
    return Number(/^Pss:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))![1]) / 1024
  } catch {
    return 0 // the process has ended
  }
}
