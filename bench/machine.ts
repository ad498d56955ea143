import { readdirSync, readFileSync } from 'node:fs'
import { cpus, loadavg, release, totalmem } from 'node:os'
import { setTimeout as pause } from 'node:timers/promises'

export function describeMachine(): string {
  const [processor] = cpus()
  const memory = Math.round(totalmem() / 2 ** 30)
  return `${cpus().length} cores (${processor?.model.trim()}), ${memory} GiB, Linux ${release()}`
}

export function describeLoad(): string {
  return `load average ${loadavg()[0]!.toFixed(1)} at its start`
}

const sampleMillis = 120

/** Returns the CPU share of other programs, measured while the benchmark itself is idle. */
export async function shareOfOthers(): Promise<number> {
  const before = readProcessorTimes()
  await pause(sampleMillis)
  const after = readProcessorTimes()
  return 1 - (after.idle - before.idle) / Math.max(1, after.all - before.all)
}

/** Returns the CPU time that these processes have used so far; ended processes count as zero. */
export function processorMillis(processes: number[]): number {
  return processes.reduce((sum, pid) => sum + threadsOf(pid).reduce((all, thread) => all + thread, 0), 0)
}

function threadsOf(pid: number): number[] {
  try {
    const threads = readdirSync(`/proc/${pid}/task`)
    return threads.map(
      (thread) => Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]) / 1e6,
    )
  } catch {
    return []
  }
}

export function childrenOf(pid: number): number[] {
  const text = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim()
  return text === '' ? [] : text.split(' ').map(Number)
}

function readProcessorTimes(): { all: number; idle: number } {
  const [first] = readFileSync('/proc/stat', 'utf8').split('\n')
  const times = first!.trim().split(/\s+/).slice(1, 9).map(Number)
  return { all: times.reduce((sum, time) => sum + time, 0), idle: times[3]! + times[4]! }
}
