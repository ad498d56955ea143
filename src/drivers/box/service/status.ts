// Reads what s6-supervise and the service's own scripts write about a service of a box. The box owns these files, so
// they are untrusted: symlinks are not followed, lengths are limited, and every value is checked.
import { closeSync, fstatSync, readSync, writeSync } from 'node:fs'
import { diskFullProblem } from '../../../model/sandbox/service.ts'
import type { ServiceEnd, ServiceProcess } from '../../../model/sandbox/service-state.ts'
import { openUntrustedFile, openUntrustedPipe } from '../../host/untrusted-file.ts'
import { decodeStatus, type SupervisedStatus } from '../../s6/status.ts'

/** Maps a wait status to an exit code as a shell does: 128 plus the signal number for a signal. */
export function exitCodeOf(waitStatus: number): number {
  const signal = waitStatus & 0x7f
  return signal === 0 ? waitStatus >> 8 : 128 + signal
}

/** More than any of these files holds. */
const maxBytes = 1024
/** The range of `Date`. */
const maxTimeMs = 8.64e15
/** Shared by all reads: services are inspected often. */
const buffer = Buffer.alloc(maxBytes)

interface StateFile {
  bytes: Buffer
  changedAtMs: number
}

/** Reads the first bytes of a regular file that the box owns. The bytes are valid until the next call. */
export function readStateFile(run: string, path: string): StateFile | undefined {
  const descriptor = openUntrustedFile(run, path)
  if (descriptor === undefined) return undefined
  try {
    const { mtimeMs } = fstatSync(descriptor)
    if (Math.abs(mtimeMs) > maxTimeMs) return undefined
    return { bytes: buffer.subarray(0, readSync(descriptor, buffer, 0, maxBytes, 0)), changedAtMs: mtimeMs }
  } finally {
    closeSync(descriptor)
  }
}

/** Writes to a pipe; false if it has no reader. An empty text only checks for one. */
export function writePipe(run: string, path: string, text = ''): boolean {
  const descriptor = openUntrustedPipe(run, path)
  if (descriptor === undefined) return false
  try {
    return text === '' || writeSync(descriptor, text) === text.length
  } catch {
    return false // the pipe is full, or its reader has just ended
  } finally {
    closeSync(descriptor)
  }
}

/** Paths are relative to `run`, whose parents the box cannot change. */
export interface RunPaths {
  run: string
  control: string
  status: string
  /** The pid of the run script, written first at every start. */
  group: string
  /** The pid and the number of restarts, written when the program starts. */
  begun: string
  state: string
  /** Written when the program ends on its own: the number of restarts, the delay and why it could not start. */
  restarts: string
  /** The last exit code. */
  ended: string
  health: string
  /** A pipe; writing to it ends the delay before a restart. */
  wake: string
}

export function runPaths(run: string, name: string): RunPaths {
  const state = `${name}/state`
  return {
    run,
    control: `${name}/supervise/control`,
    status: `${name}/supervise/status`,
    group: `${state}/group`,
    begun: `${state}/begun`,
    state,
    restarts: `${state}/restarts`,
    ended: `${state}/ended`,
    health: `${state}/health`,
    wake: `${state}/wake`,
  }
}

export function readStatus({ run, control, status }: RunPaths): SupervisedStatus | undefined {
  if (!writePipe(run, control)) return undefined
  const file = readStateFile(run, status)
  return file && decodeStatus(file.bytes)
}

/** Returns a text that differs for every start of the service. */
export function readStartId(paths: RunPaths): string {
  const file = readStateFile(paths.run, paths.group)
  return file ? `${file.bytes.toString('latin1')}${file.changedAtMs}` : ''
}

export function inspectProcess(paths: RunPaths, hasHealth: boolean): ServiceProcess {
  const status = readStatus(paths)
  if (!status) return { is: 'absent' }
  const { wanted } = status
  if (status.pid === 0 || status.finishing) {
    const last = readRestarts(paths)
    // A wanted service that has not ended on its own is about to start.
    const end = wanted && !last ? findDiskFull(status) : endOf(paths, status, last)
    const nextRestartAtMs = wanted && last ? last.nextAtMs : undefined
    const is = status.finishing ? 'ending' : 'down'
    return { is, wanted, sinceMs: Number(status.since / 1000n), end, restarts: last?.count ?? 0, nextRestartAtMs }
  }
  const begun = parseBegun(readStateFile(paths.run, paths.begun))
  const isOurs = begun?.pid === status.pid
  return {
    is: 'up',
    wanted,
    ready: status.ready,
    pid: status.pid,
    begunAtMs: isOurs ? begun.atMs : undefined,
    restarts: begun?.restarts ?? 0,
    health: hasHealth && isOurs ? parseHealth(readStateFile(paths.run, paths.health)) : undefined,
  }
}

function parseBegun(file: StateFile | undefined) {
  const match = file && /^(\d{1,10}) (\d{1,9})\n/.exec(file.bytes.toString('latin1'))
  return match ? { pid: Number(match[1]), restarts: Number(match[2]), atMs: file.changedAtMs } : undefined
}

interface Restarts {
  count: number
  nextAtMs: number
  problem: string
}

function readRestarts(paths: RunPaths): Restarts | undefined {
  const file = readStateFile(paths.run, paths.restarts)
  const match = file && /^(\d{1,9}) \d{1,9} (\d{1,4}) ?(.*)\n/.exec(file.bytes.toString())
  if (!match) return undefined
  return { count: Number(match[1]), nextAtMs: file.changedAtMs + Number(match[2]) * 1000, problem: match[3]! }
}

function endOf(paths: RunPaths, { waitStatus, finishing }: SupervisedStatus, last: Restarts | undefined): ServiceEnd {
  // A supervisor that has never seen the service run reports 0.
  const known = waitStatus === 0 && !finishing ? readEnded(paths) : undefined
  return { code: known ?? exitCodeOf(waitStatus), problem: last?.problem || undefined }
}

function readEnded({ run, ended }: RunPaths): number | undefined {
  const match = /^(\d{1,3})\n/.exec(readStateFile(run, ended)?.bytes.toString('latin1') ?? '')
  return match ? Number(match[1]) : undefined
}

/** The exit code of `run.sh` when it can record neither a start nor a failure. */
const diskFullCode = 75

function findDiskFull({ waitStatus }: SupervisedStatus): ServiceEnd | undefined {
  const code = exitCodeOf(waitStatus)
  return code === diskFullCode ? { code, problem: diskFullProblem } : undefined
}

function parseHealth(file: StateFile | undefined) {
  const status = file?.bytes.toString('latin1').trim()
  if (file && (status === 'healthy' || status === 'unhealthy')) return { status, sinceMs: file.changedAtMs } as const
  return undefined
}
