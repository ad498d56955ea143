// The state that s6 keeps of a service in a file. s6-svstat prints the same, but to start a process blocks ours until the
// new one has begun, and there is a look at some service all the time.
import { constants } from 'node:os'
import type { Micros } from '../../model/time.ts'
import { readIfPresent } from '../host/file.ts'
import { run } from '../host/process.ts'

export type ProcessStatus =
  /** While it is `finishing`, what comes after its end is still being done. */
  | { is: 'down'; wanted: boolean; finishing?: boolean; exitCode?: number; signal?: string; since: Micros }
  | { is: 'up'; pid: number; wanted: boolean; since: Micros; ready: boolean }

/** Undefined while its supervisor has only just begun. */
export async function readStatus(directory: string): Promise<ProcessStatus | undefined> {
  const bytes = readIfPresent(`${directory}/supervise/status`)
  if (!bytes) return undefined
  const status = parseStatusFile(bytes)
  if (status) return status
  return parseStatusLine((await run('s6-svstat', ['-o', statusFields, directory])).stdout)
}

/** Until 2.11 a file has 35 bytes; later ones have 43, with the process group behind the pid. */
const groupBytes: Record<number, number> = { 35: 0, 43: 8 }
const flags = { finishing: 2, wantedUp: 4, ready: 8 }

/** Undefined for a version of s6 that writes something else. */
export function parseStatusFile(bytes: Buffer): ProcessStatus | undefined {
  const skipped = groupBytes[bytes.length]
  if (skipped === undefined) return undefined
  const has = (flag: keyof typeof flags) => (bytes.readUInt8(34 + skipped) & flags[flag]) !== 0
  const since = fromTai64n(bytes.readBigUInt64BE(0), bytes.readUInt32BE(8))
  const pid = Number(bytes.readBigUInt64BE(24))
  const wanted = has('wantedUp')
  const finishing = has('finishing')
  if (pid !== 0 && !finishing) return { is: 'up', pid, wanted, since, ready: has('ready') }
  return { is: 'down', wanted, ...(finishing && { finishing }), ...explainEnd(bytes.readUInt16BE(32 + skipped)), since }
}

/** How a process ended, as wait(2) tells it. */
function explainEnd(status: number): { exitCode?: number; signal?: string } {
  const number = status & 0x7f
  if (number === 0) return { exitCode: status >> 8 }
  const signal = Object.entries(constants.signals).find(([, known]) => known === number)
  return { signal: signal?.[0] ?? `signal ${number}` }
}

export const statusFields = 'up,wantedup,pid,ready,exitcode,signal,updownsince'

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

/** Seconds of atomic time, which is 37 s ahead of UTC since 2017, and nanoseconds. */
function fromTai64n(seconds: bigint, nanoseconds: number): Micros {
  return (seconds - 2n ** 62n - 37n) * 1_000_000n + BigInt(nanoseconds) / 1000n
}
