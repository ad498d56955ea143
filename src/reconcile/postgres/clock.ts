// Decides from observations of a source how far its recovery window reaches, and when its clock was changed.
import { endOfRecords, type Lsn } from '../../model/postgres/wal.ts'
import type { Micros } from '../../model/time.ts'

/** One observation of a source. The time at the source was read between two times of the platform's steady clock. */
export interface Observation {
  at: Micros
  steady: { before: Micros; after: Micros }
  /** The position of the next WAL record, read before the clock. */
  insertLsn: Lsn
  /** The end of the archived WAL. */
  archivedLsn: Lsn
}

/** A time read from the source, and a position that all commits up to this time precede, once it is known. */
export interface Candidate {
  at: Micros
  /** When it was read, on the steady clock. */
  readAt: Micros
  beginLsn: Lsn
  lsn: Lsn | undefined
}

export interface Clock {
  last: Observation | undefined
  candidates: Candidate[]
}

export const newClock: Clock = { last: undefined, candidates: [] }

/**
 * A commit gets its timestamp before its record is written. So the position is read at least this long after the clock;
 * by then every commit with a timestamp up to that clock has been written.
 */
const settleMicros = 1_000_000n

/**
 * A smaller change counts as none, because it cannot move a commit after the position of a sample to before its time.
 * Between observations that are further apart, the clock may be slow or fast by half.
 */
function tolerance(passed: Micros): Micros {
  return passed < 1_000_000n ? 500_000n : passed / 2n
}

/** After a longer time without an observation, only the WAL tells whether the clock was changed. */
export const maxPauseMicros = 5_000_000n

/** Bounds the memory while the archive is down for long. */
const maxCandidates = 20

/** By how much the clock was changed between two observations; undefined if it ran evenly. */
export function findStep(before: Observation, seen: Observation): Micros | undefined {
  const passed = seen.at - before.at
  const least = seen.steady.before - before.steady.after
  const most = seen.steady.after - before.steady.before
  if (passed > most + tolerance(most)) return passed - most
  return passed < least - tolerance(least) ? passed - least : undefined
}

export interface Progress {
  clock: Clock
  reached: Candidate | undefined
}

/** Updates the candidates with an observation: returns the newest archived one and those still waiting. Pure. */
export function considerObservation({ candidates }: Clock, seen: Observation): Progress {
  const placed = candidates.map((candidate) => {
    const isSettled = seen.steady.before - candidate.readAt >= settleMicros && seen.at > candidate.at
    return candidate.lsn === undefined && isSettled ? { ...candidate, lsn: endOfRecords(seen.insertLsn) } : candidate
  })
  const reached = placed.findLast((candidate) => candidate.lsn !== undefined && candidate.lsn <= seen.archivedLsn)
  const waiting = placed.filter((candidate) => reached === undefined || candidate.readAt > reached.readAt)
  const fresh = { at: seen.at, readAt: seen.steady.after, beginLsn: endOfRecords(seen.insertLsn), lsn: undefined }
  return { reached, clock: { last: seen, candidates: [...waiting.slice(-maxCandidates), fresh] } }
}

/** The clock after it was changed: what was read before it does not count. */
export function restartClock(seen: Observation): Clock {
  return considerObservation(newClock, seen).clock
}
