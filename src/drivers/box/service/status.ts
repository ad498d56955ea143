// Reads what s6-supervise and the service's own scripts write about a service of a box. The box owns these files, so
// they are untrusted: symlinks are not followed, lengths are limited, and every value is checked.
import { closeSync, constants, fstatSync, openSync, readSync, writeSync } from 'node:fs'
import type { ServiceEnd, ServiceProcess } from '../../../model/sandbox/service-state.ts'
import { decodeStatus, type SupervisedStatus } from '../../s6/status.ts'

/** Maps a wait status to an exit code as a shell does: 128 plus the signal number for a signal. */
export function exitCodeOf(waitStatus: number): number {
  const signal = waitStatus & 0x7f
  return signal === 0 ? waitStatus >> 8 : 128 + signal
}

const readFlags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK
const writeFlags = constants.O_WRONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK
/** More than any of these files holds. */
const maxBytes = 1024
/** The range of `Date`. */
const maxTimeMs = 8.64e15
/** Shared by all reads: services are inspected often. */
const buffer = Buffer.alloc(maxBytes)

export interface UntrustedFile {
  bytes: Buffer
  changedAtMs: number
}

/** Reads the first bytes of a regular file that the box owns. The bytes are valid until the next call. */
export function readUntrustedFile(path: string): UntrustedFile | undefined {
  const descriptor = openLeaf(path, readFlags)
  if (descriptor === undefined) return undefined
  try {
    const found = fstatSync(descriptor)
    if (!found.isFile() || Math.abs(found.mtimeMs) > maxTimeMs) return undefined
    return { bytes: buffer.subarray(0, readSync(descriptor, buffer, 0, maxBytes, 0)), changedAtMs: found.mtimeMs }
  } finally {
    closeSync(descriptor)
  }
}

function openLeaf(path: string, flags: number): number | undefined {
  try {
    return openSync(path, flags)
  } catch {
    return undefined // absent, a symlink, or a pipe without a reader
  }
}

/** Writes to a pipe; false if it has no reader. An empty text only checks for one. */
export function writePipe(path: string, text = ''): boolean {
  const descriptor = openLeaf(path, writeFlags)
  if (descriptor === undefined) return false
  try {
    if (!fstatSync(descriptor).isFIFO()) return false
    return text === '' || writeSync(descriptor, text) === text.length
  } catch {
    return false // the pipe is full, or its reader has just ended
  } finally {
    closeSync(descriptor)
  }
}

export interface RunPaths {
  control: string
  status: string
  /** The pid of the run script, written first at every start. */
  group: string
  /** The pid and the number of restarts, written when the program starts. */
  begun: string
  /** Written when the program ends on its own: the number of restarts, the delay and why it could not start. */
  restarts: string
  health: string
  /** A pipe; writing to it ends the delay before a restart. */
  wake: string
}

export function runPaths(run: string, name: string): RunPaths {
  const directory = `${run}/${name}`
  return {
    control: `${directory}/supervise/control`,
    status: `${directory}/supervise/status`,
    group: `${directory}/state/group`,
    begun: `${directory}/state/begun`,
    restarts: `${directory}/state/restarts`,
    health: `${directory}/state/health`,
    wake: `${directory}/state/wake`,
  }
}

/** Runs at every inspection of a service, so it makes as few system calls as possible. */
export function readStatus(paths: RunPaths): SupervisedStatus | undefined {
  const control = openLeaf(paths.control, writeFlags)
  if (control === undefined) return undefined
  closeSync(control)
  const status = openLeaf(paths.status, readFlags)
  if (status === undefined) return undefined
  try {
    return decodeStatus(buffer.subarray(0, readSync(status, buffer, 0, maxBytes, 0)))
  } catch {
    return undefined // a directory
  } finally {
    closeSync(status)
  }
}

/** Returns a text that differs for every start of the service. */
export function readStartId(paths: RunPaths): string {
  const file = readUntrustedFile(paths.group)
  return file ? `${file.bytes.toString('latin1')}${file.changedAtMs}` : ''
}

export function inspectProcess(paths: RunPaths, hasHealth: boolean): ServiceProcess {
  const status = readStatus(paths)
  if (!status) return { is: 'absent' }
  const { wanted } = status
  if (status.pid === 0 || status.finishing) {
    const last = readRestarts(paths)
    // A wanted service that has not ended on its own is about to start.
    const end = wanted && !last ? undefined : endOf(status, last)
    const nextRestartAtMs = wanted && last ? last.nextAtMs : undefined
    const is = status.finishing ? 'ending' : 'down'
    return { is, wanted, sinceMs: Number(status.since / 1000n), end, restarts: last?.count ?? 0, nextRestartAtMs }
  }
  const begun = parseBegun(readUntrustedFile(paths.begun))
  const isOurs = begun?.pid === status.pid
  return {
    is: 'up',
    wanted,
    ready: status.ready,
    pid: status.pid,
    begunAtMs: isOurs ? begun.atMs : undefined,
    restarts: begun?.restarts ?? 0,
    health: hasHealth && isOurs ? parseHealth(readUntrustedFile(paths.health)) : undefined,
  }
}

function parseBegun(file: UntrustedFile | undefined) {
  const match = file && /^(\d{1,10}) (\d{1,9})\n/.exec(file.bytes.toString('latin1'))
  return match ? { pid: Number(match[1]), restarts: Number(match[2]), atMs: file.changedAtMs } : undefined
}

interface Restarts {
  count: number
  nextAtMs: number
  problem: string
}

function readRestarts(paths: RunPaths): Restarts | undefined {
  const file = readUntrustedFile(paths.restarts)
  const match = file && /^(\d{1,9}) \d{1,9} (\d{1,4}) ?(.*)\n/.exec(file.bytes.toString())
  if (!match) return undefined
  return { count: Number(match[1]), nextAtMs: file.changedAtMs + Number(match[2]) * 1000, problem: match[3]! }
}

function endOf({ waitStatus }: SupervisedStatus, last: Restarts | undefined): ServiceEnd {
  return { code: exitCodeOf(waitStatus), problem: last?.problem || undefined }
}

function parseHealth(file: UntrustedFile | undefined) {
  const status = file?.bytes.toString('latin1').trim()
  if (file && (status === 'healthy' || status === 'unhealthy')) return { status, sinceMs: file.changedAtMs } as const
  return undefined
}
