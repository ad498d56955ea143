// Damage at the end of an archived write-ahead log.
import { type Micros, toRfc3339 } from '../time.ts'
import { formatLsn, type Lsn, parseLsn } from './wal.ts'

export interface LogDamage {
  /** The end of what is intact. */
  position: Lsn
  /** The position and the time that the log had reached; undefined if the record of that is damaged itself. */
  recorded: { lsn: Lsn; at: Micros } | undefined
  /** What is wrong. */
  reason: string
}

export interface LogTail {
  end: Lsn
  damage?: LogDamage | undefined
}

/** The end of a recovery window, which the log must contain too. */
export interface WindowEnd {
  latest: Micros
  latestLsn: string
}

/** The damage that an archive reports, or its lack of what the recovery window contains. */
export function findLogDamage(tail: LogTail | undefined, window: WindowEnd, from: Lsn): LogDamage | undefined {
  if (tail?.damage) return tail.damage
  const lsn = parseLsn(window.latestLsn)
  if (tail && tail.end >= lsn) return undefined
  const reason = tail ? 'a record is damaged or missing' : 'its first segment is missing'
  return { position: tail?.end ?? from, recorded: { lsn, at: window.latest }, reason }
}

/** `it is intact up to 0/5000, but 0/7000 was reached at 2026-…: WAL segment … is missing` */
export function describeLogDamage({ position, recorded, reason }: LogDamage): string {
  const reached = recorded
    ? `${formatLsn(recorded.lsn)} was reached at ${toRfc3339(recorded.at)}`
    : 'its end is unknown'
  return `it is intact up to ${formatLsn(position)}, but ${reached}: ${reason}`
}
