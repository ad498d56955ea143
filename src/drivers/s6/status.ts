// The state of a supervised process, read from the file that s6-supervise keeps for it. s6-svstat prints the same, but
// spawning a process blocks the event loop, and some service is inspected all the time.
import { constants } from 'node:os'
import type { Micros } from '../../model/time.ts'
import { readIfPresent } from '../host/file.ts'
import { run } from '../host/process.ts'
import type { ProcessStatus } from './driver.ts'

/** The fields of `supervise/status`, as in `s6_svstatus_unpack.c`. */
export interface SupervisedStatus {
  /** The time of the last change between up and down. */
  since: Micros
  /** The pid of the run script or, while `finishing`, of the finish script; 0 when neither runs. */
  pid: number
  /** How the run script last ended, as reported by wait(2). */
  waitStatus: number
  paused: boolean
  finishing: boolean
  wanted: boolean
  ready: boolean
}

/** Returns undefined until a new s6-supervise has written its first status. */
export async function readStatus(directory: string): Promise<ProcessStatus | undefined> {
  const bytes = readIfPresent(`${directory}/supervise/status`)
  if (!bytes) return undefined
  const status = parseStatusFile(bytes)
  if (status) return status
  return parseStatusLine((await run('s6-svstat', ['-o', statusFields, directory])).stdout)
}

/**
 * The start of the wait status by file size. A file starts with the time stamp (12 bytes), the readiness stamp (12) and
 * the pid (8), and ends with the wait status (2) and the flags (1). s6 2.13 (Debian 13) has the process group (8) in
 * between; 2.12 and older (Debian 12) and 2.14 and newer do not.
 */
const waitStatusOffsets: Record<number, number> = { 35: 32, 43: 40 }
const pidOffset = 24
const flagBits = { paused: 1, finishing: 2, wanted: 4, ready: 8 }
/** PID_MAX_LIMIT of 64-bit kernels. */
const maxPid = 4_194_304n
/** The range of `Date`. */
const maxTime: Micros = 8_640_000_000_000_000_000n

/** Decodes a status file; undefined if s6 cannot have written these bytes. */
export function decodeStatus(bytes: Buffer): SupervisedStatus | undefined {
  const offset = waitStatusOffsets[bytes.length]
  if (offset === undefined) return undefined
  const since = fromTai64n(bytes.readBigUInt64BE(0), bytes.readUInt32BE(8))
  const pid = bytes.readBigUInt64BE(pidOffset)
  if (pid > maxPid || since > maxTime || since < -maxTime) return undefined
  const flags = bytes.readUInt8(offset + 2)
  return {
    since,
    pid: Number(pid),
    waitStatus: bytes.readUInt16BE(offset),
    paused: (flags & flagBits.paused) !== 0,
    finishing: (flags & flagBits.finishing) !== 0,
    wanted: (flags & flagBits.wanted) !== 0,
    ready: (flags & flagBits.ready) !== 0,
  }
}

/** Summarizes a status file; undefined if s6 cannot have written these bytes. */
export function parseStatusFile(bytes: Buffer): ProcessStatus | undefined {
  const status = decodeStatus(bytes)
  if (!status) return undefined
  const { pid, since, wanted, ready, finishing } = status
  if (pid !== 0 && !finishing) return { is: 'up', pid, wanted, since, ready }
  return { is: 'down', wanted, ...(finishing && { finishing }), ...explainWaitStatus(status.waitStatus), since }
}

function explainWaitStatus(waitStatus: number): { exitCode?: number; signal?: string } {
  const signal = waitStatus & 0x7f
  return signal === 0 ? { exitCode: waitStatus >> 8 } : { signal: signalName(signal) }
}

export function signalName(number: number): string {
  const known = Object.entries(constants.signals).find(([, value]) => value === number)
  return known?.[0] ?? `signal ${number}`
}

export const statusFields = 'up,wantedup,pid,ready,exitcode,signal,updownsince'

/** Parses a line that `s6-svstat -o` prints for `statusFields`. */
export function parseStatusLine(line: string): ProcessStatus {
  const [up, wantedUp, pid, ready, exitCode, signal, label = ''] = line.trim().split(' ')
  const wanted = wantedUp === 'true'
  const since = fromTai64n(BigInt(`0x${label.slice(1, 17)}`), Number.parseInt(label.slice(17), 16))
  if (up === 'true') return { is: 'up', pid: Number(pid), wanted, since, ready: ready === 'true' }
  return {
    is: 'down',
    wanted,
    ...(Number(exitCode) >= 0 && { exitCode: Number(exitCode) }),
    ...(signal !== undefined && signal !== 'NA' && { signal }),
    since,
  }
}

/** Converts a TAI64N label. TAI has been 37 s ahead of UTC since 2017, and labels count from 2^62. */
function fromTai64n(seconds: bigint, nanoseconds: number): Micros {
  return (seconds - 2n ** 62n - 37n) * 1_000_000n + BigInt(nanoseconds) / 1000n
}
