// What s6-supervise writes about a service, read without starting a process. The files belong to the box, so that
// nothing in them is believed beyond the box itself: links are not followed, lengths are bounded.
import { closeSync, constants, fstatSync, openSync, readSync, writeSync } from 'node:fs'
import type { ServiceEnd, ServiceProcess } from '../../../model/sandbox/service-state.ts'

/** The 35 bytes of s6 2.9 to 2.12. */
export interface SupervisedStatus {
  /** When it went up or down. */
  sinceMs: number
  /** Of the program, or of what clears up after it; 0 when there is none. */
  pid: number
  waitStatus: number
  paused: boolean
  finishing: boolean
  wanted: boolean
  ready: boolean
}

const statusBytes = 35
/** Seconds of atomic time are 37 ahead of UTC since 2017, and labels count from 2^62. */
const labelEpoch = 2n ** 62n + 37n
const latestMs = 8.64e15

export function parseStatus(bytes: Buffer): SupervisedStatus | undefined {
  if (bytes.length !== statusBytes) return undefined
  const sinceMs = Number((bytes.readBigUInt64BE(0) - labelEpoch) * 1000n) + Math.trunc(bytes.readUInt32BE(8) / 1e6)
  // A pid has 22 bits, so that the upper half of the field is zero.
  if (bytes.readUInt32BE(24) !== 0 || Math.abs(sinceMs) > latestMs) return undefined
  const flags = bytes[34]!
  return {
    sinceMs,
    pid: bytes.readUInt32BE(28),
    waitStatus: bytes.readUInt16BE(32),
    paused: (flags & 1) !== 0,
    finishing: (flags & 2) !== 0,
    wanted: (flags & 4) !== 0,
    ready: (flags & 8) !== 0,
  }
}

export function exitCodeOf(waitStatus: number): number {
  const signal = waitStatus & 0x7f
  return signal === 0 ? waitStatus >> 8 : 128 + signal
}

const readFlags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK
const writeFlags = constants.O_WRONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK
/** Longer than anything that is written there. */
const mostBytes = 1024
const room = Buffer.alloc(mostBytes)

export interface LeafFile {
  bytes: Buffer
  changedAtMs: number
}

/** The beginning of a plain file in a directory of the box. The bytes are good until the next call. */
export function readLeaf(path: string): LeafFile | undefined {
  const descriptor = openLeaf(path, readFlags)
  if (descriptor === undefined) return undefined
  try {
    const found = fstatSync(descriptor)
    if (!found.isFile() || Math.abs(found.mtimeMs) > latestMs) return undefined
    return { bytes: room.subarray(0, readSync(descriptor, room, 0, mostBytes, 0)), changedAtMs: found.mtimeMs }
  } finally {
    closeSync(descriptor)
  }
}

function openLeaf(path: string, flags: number): number | undefined {
  try {
    return openSync(path, flags)
  } catch {
    return undefined // not there, a link, or a pipe that nobody reads
  }
}

/** Writes to a pipe that somebody reads; false when there is none. Without bytes it only finds out. */
export function writePipe(path: string, text = ''): boolean {
  const descriptor = openLeaf(path, writeFlags)
  if (descriptor === undefined) return false
  try {
    if (!fstatSync(descriptor).isFIFO()) return false
    return text === '' || writeSync(descriptor, text) === text.length
  } catch {
    return false // it is full, or its reader has just gone
  } finally {
    closeSync(descriptor)
  }
}

export interface RunPaths {
  control: string
  status: string
  /** The process of each start, written before anything else. */
  group: string
  /** The process and the count of restarts, written when the program starts. */
  begun: string
  /** Written when it ended by itself: how often it did, for how long it waits, and why it could not start. */
  restarts: string
  health: string
  /** Ends a wait before its time. */
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

/** Asked for with every look at a service, so that it does without whatever it can. */
export function readStatus(paths: RunPaths): SupervisedStatus | undefined {
  const control = openLeaf(paths.control, writeFlags)
  if (control === undefined) return undefined
  closeSync(control)
  const status = openLeaf(paths.status, readFlags)
  if (status === undefined) return undefined
  try {
    return parseStatus(room.subarray(0, readSync(status, room, 0, mostBytes, 0)))
  } catch {
    return undefined // not a file
  } finally {
    closeSync(status)
  }
}

/** Another text for each start. */
export function lifeOf(paths: RunPaths): string {
  const file = readLeaf(paths.group)
  return file ? `${file.bytes.toString('latin1')}${file.changedAtMs}` : ''
}

export function inspectProcess(paths: RunPaths, hasHealth: boolean): ServiceProcess {
  const status = readStatus(paths)
  if (!status) return { is: 'absent' }
  const { wanted } = status
  if (status.pid === 0 || status.finishing) {
    const last = readRestarts(paths)
    // What is to run and has not ended by itself is about to be started.
    const end = wanted && !last ? undefined : endOf(status, last)
    const nextRestartAtMs = wanted && last ? last.nextAtMs : undefined
    const is = status.finishing ? 'ending' : 'down'
    return { is, wanted, sinceMs: status.sinceMs, end, restarts: last?.count ?? 0, nextRestartAtMs }
  }
  const begun = parseBegun(readLeaf(paths.begun))
  const isOurs = begun?.pid === status.pid
  return {
    is: 'up',
    wanted,
    ready: status.ready,
    pid: status.pid,
    begunAtMs: isOurs ? begun.atMs : undefined,
    restarts: begun?.restarts ?? 0,
    health: hasHealth && isOurs ? parseHealth(readLeaf(paths.health)) : undefined,
  }
}

function parseBegun(file: LeafFile | undefined) {
  const match = file && /^(\d{1,10}) (\d{1,9})\n/.exec(file.bytes.toString('latin1'))
  return match ? { pid: Number(match[1]), restarts: Number(match[2]), atMs: file.changedAtMs } : undefined
}

interface Restarts {
  count: number
  nextAtMs: number
  problem: string
}

function readRestarts(paths: RunPaths): Restarts | undefined {
  const file = readLeaf(paths.restarts)
  const match = file && /^(\d{1,9}) \d{1,9} (\d{1,4}) ?(.*)\n/.exec(file.bytes.toString())
  if (!match) return undefined
  return { count: Number(match[1]), nextAtMs: file.changedAtMs + Number(match[2]) * 1000, problem: match[3]! }
}

function endOf({ waitStatus }: SupervisedStatus, last: Restarts | undefined): ServiceEnd {
  return { code: exitCodeOf(waitStatus), problem: last?.problem || undefined }
}

function parseHealth(file: LeafFile | undefined) {
  const status = file?.bytes.toString('latin1').trim()
  if (file && (status === 'healthy' || status === 'unhealthy')) return { status, sinceMs: file.changedAtMs } as const
  return undefined
}
