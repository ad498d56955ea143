import { readdirSync, readFileSync } from 'node:fs'

/** Proportional set size of the server, the pooler, the receiver and their supervisors and logs, for each cluster. */
export function clusterMemoryMb(ids: string[]): number[] {
  const processes = listProcesses()
  return ids.map((id) => {
    const isRoot = ({ command }: Process) =>
      command[0]!.endsWith('s6-supervise') && new RegExp(`^(pg|pooler|wal)-${id}(/log)?$`).test(command[1] ?? '')
    const family = new Set(processes.filter(isRoot).map(({ pid }) => pid))
    if (family.size !== 6) throw new Error(`cluster ${id} has ${family.size} supervisors instead of 6`)
    // A parent may have the higher number, so children are looked for until there are no more.
    for (let size = 0; size < family.size; ) {
      size = family.size
      for (const { pid, parent } of processes) if (family.has(parent)) family.add(pid)
    }
    return [...family].reduce((sum, pid) => sum + proportionalMb(pid), 0)
  })
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
      return [] // it ended meanwhile
    }
  })
}

function proportionalMb(pid: number): number {
  try {
    return Number(/^Pss:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))![1]) / 1024
  } catch {
    return 0 // it ended meanwhile
  }
}
