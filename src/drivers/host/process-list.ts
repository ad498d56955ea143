import { closeSync, openSync, readdirSync, readlinkSync, readSync } from 'node:fs'
import { setImmediate } from 'node:timers/promises'

export interface Process {
  pid: number
  parent: number
  session: number
  name: string
  /** In clock ticks since boot. Together with the pid it identifies a process, even if the pid is reused. */
  startTime: string
}

/** Lists every running process. Zombies do not count. */
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

const batchSize = 25

/** Inspects processes in small batches: hundreds take tens of milliseconds, which would block the event loop. */
export async function filterProcesses(matches: (found: Process) => boolean): Promise<Process[]> {
  const matching: Process[] = []
  for (const [index, pid] of listPids().entries()) {
    if (index % batchSize === 0) await setImmediate()
    const found = findProcess(pid)
    if (found && !isKernelThread(found) && matches(found)) matching.push(found)
  }
  return matching
}

function isKernelThread({ pid, parent }: Process): boolean {
  return parent === 2 || pid === 2
}

export function findProcess(pid: number): Process | undefined {
  const stat = readProc(() => readSmall(`/proc/${pid}/stat`))
  if (stat === undefined) return undefined
  // The name is in parentheses and may contain parentheses itself.
  const nameEnd = stat.lastIndexOf(')')
  const fields = stat.slice(nameEnd + 2).split(' ')
  const [state, parent, , session] = fields
  if (state === 'Z' || state === 'X') return undefined
  const name = stat.slice(stat.indexOf('(') + 1, nameEnd)
  return { pid, parent: Number(parent), session: Number(session), name, startTime: fields[19]! }
}

export function listChildren(pid: number): Process[] {
  const children = readProc(() => readSmall(`/proc/${pid}/task/${pid}/children`)) ?? ''
  const pids = children.split(' ').filter((each) => each !== '')
  return pids.map((each) => findProcess(Number(each))).filter((found) => found !== undefined)
}

export function findWorkingDirectory(pid: number): string | undefined {
  return readProc(() => readlinkSync(`/proc/${pid}/cwd`))
}

/** Whether the process is stopped by SIGSTOP or a similar signal. */
export function isStopped(pid: number): boolean {
  return /^State:\s+T/m.test(readProc(() => readSmall(`/proc/${pid}/status`)) ?? '')
}

/** Returns the environment that a process was started with, as `NAME=value` entries; empty if it is not readable. */
export function readEnvironment(pid: number): string[] {
  return readProc(() => readSmall(`/proc/${pid}/environ`))?.split('\0') ?? []
}

export function hasEnvironmentEntry(pid: number, entry: string): boolean {
  const entries = readProc(() => readSmall(`/proc/${pid}/environ`)) ?? ''
  return `\0${entries}`.includes(`\0${entry}\0`)
}

const buffer = Buffer.alloc(64 * 1024)

/** Reads a file of /proc with fewer system calls than readFileSync: listing processes reads hundreds of them. */
function readSmall(file: string): string {
  const descriptor = openSync(file, 'r')
  try {
    let text = ''
    for (;;) {
      const bytes = readSync(descriptor, buffer)
      text += buffer.toString('utf8', 0, bytes)
      // The kernel returns at least a page unless the file ends.
      if (bytes < 4096) return text
    }
  } finally {
    closeSync(descriptor)
  }
}

// A process may have ended since it was listed, and an ordinary user may not read the processes of others.
function readProc<T>(read: () => T): T | undefined {
  try {
    return read()
  } catch {
    return undefined
  }
}

/** Sends a signal; does nothing if the process has ended. */
export function killProcess(pid: number, signal: NodeJS.Signals | number): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}
