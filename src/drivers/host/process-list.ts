import { closeSync, openSync, readdirSync, readlinkSync, readSync } from 'node:fs'
import { setImmediate } from 'node:timers/promises'

export interface Process {
  pid: number
  parent: number
  session: number
  name: string
  /** In clock ticks since boot; with the pid it names one process for good. */
  startTime: string
}

/** Every living process. One that has ended and waits for its parent to notice does not count. */
export function listProcesses(): Process[] {
  return listPids()
    .map(findProcess)
    .filter((found) => found !== undefined)
}

function listPids(): number[] {
  return readdirSync('/proc')
    .filter((entry) => /^\d+$/.test(entry))
    .map(Number)
}

const atOnce = 25

/** A few at a time: to look at hundreds takes tens of milliseconds, in which nobody would get an answer. */
export async function filterProcesses(matches: (found: Process) => boolean): Promise<Process[]> {
  const matching: Process[] = []
  for (const [index, pid] of listPids().entries()) {
    if (index % atOnce === 0) await setImmediate()
    const found = findProcess(pid)
    if (found && !isOfKernel(found) && matches(found)) matching.push(found)
  }
  return matching
}

function isOfKernel({ pid, parent }: Process): boolean {
  return parent === 2 || pid === 2
}

export function findProcess(pid: number): Process | undefined {
  const stat = readProc(() => readSmall(`/proc/${pid}/stat`))
  if (stat === undefined) return undefined
  // The name stands in parentheses and may itself hold any character, parentheses as well.
  const nameEnd = stat.lastIndexOf(')')
  const fields = stat.slice(nameEnd + 2).split(' ')
  const [state, parent, , session] = fields
  if (state === 'Z' || state === 'X') return undefined
  const name = stat.slice(stat.indexOf('(') + 1, nameEnd)
  return { pid, parent: Number(parent), session: Number(session), name, startTime: fields[19]! }
}

export function findWorkingDirectory(pid: number): string | undefined {
  return readProc(() => readlinkSync(`/proc/${pid}/cwd`))
}

/** Whether a signal made it stand still until another one lets it go on. */
export function isStopped(pid: number): boolean {
  return /^State:\s+T/m.test(readProc(() => readSmall(`/proc/${pid}/status`)) ?? '')
}

/** The environment a process was started with, as `NAME=value` entries; empty when it is not ours to read. */
export function readEnvironment(pid: number): string[] {
  return readProc(() => readSmall(`/proc/${pid}/environ`))?.split('\0') ?? []
}

export function hasEnvironmentEntry(pid: number, entry: string): boolean {
  const entries = readProc(() => readSmall(`/proc/${pid}/environ`)) ?? ''
  return `\0${entries}`.includes(`\0${entry}\0`)
}

const buffer = Buffer.alloc(64 * 1024)

/** Hundreds of files are read for one look at all processes, and nobody gets an answer meanwhile. */
function readSmall(file: string): string {
  const descriptor = openSync(file, 'r')
  try {
    let text = ''
    for (;;) {
      const bytes = readSync(descriptor, buffer)
      text += buffer.toString('utf8', 0, bytes)
      // The kernel hands out a page at a time at least, so that less is the end.
      if (bytes < 4096) return text
    }
  } finally {
    closeSync(descriptor)
  }
}

// A process may end between being listed and being looked at, and others' processes are closed to an ordinary user.
function readProc<T>(read: () => T): T | undefined {
  try {
    return read()
  } catch {
    return undefined
  }
}

/** Harmless when the process has ended meanwhile. */
export function killProcess(pid: number, signal: NodeJS.Signals | number): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}
