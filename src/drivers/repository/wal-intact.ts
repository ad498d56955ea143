// Compares an archive with what was recorded while it was written, in order to find out where it is intact.
import type { LogDamage } from '../../model/postgres/log-damage.ts'
import { type Lsn, segmentBytes, segmentName, segmentNumber, segmentStart } from '../../model/postgres/wal.ts'
import { findLongestMatch, readMarks } from './digest.ts'
import type { WalTail } from './driver.ts'
import { type EndRecord, lastSegment } from './end.ts'
import type { Seals } from './seal.ts'
import { findTail } from './wal-tail.ts'

/** A gapless sequence of segments in a directory. */
export interface SegmentSequence {
  directory: string
  timeline: number
  /** The position that the sequence is wanted from. */
  from: Lsn
  /** The number of the last segment. */
  last: bigint
  read(number: bigint): Promise<Buffer>
}

/**
 * Finds the end of the intact records. The recorded digest decides whether the log is intact up to the recorded end: a
 * power failure of the source may leave the first part of a record there, which is no damage. Records after the recorded
 * end are used as far as they are intact.
 */
export async function findIntactTail(
  log: SegmentSequence,
  record: EndRecord | undefined,
  before?: Lsn,
): Promise<WalTail | undefined> {
  const first = segmentNumber(log.from)
  const walk = (last: bigint, limit?: Lsn) => findTail(log.read, first, last, limit)
  const last = before === undefined ? log.last : minimum(log.last, segmentNumber(before - 1n))
  const tail = await walk(last, before)
  const limit = before ?? record?.lsn
  if (!record || record.timeline !== log.timeline || record.lsn <= log.from || record.lsn > limit!) return tail
  const { number, bytes } = lastSegment(record.lsn)
  const name = segmentName(log.timeline, number)
  if (number > log.last) {
    const missing = segmentName(log.timeline, log.last + 1n)
    return withDamage(log, record, tail, `WAL segment ${missing} is missing`)
  }
  const matched = await findLongestMatch(log.directory, name, record.marks)
  const expected = record.marks.at(-1)?.bytes ?? 0
  if (matched < expected) {
    const intact = await findIntactPart(walk, record, number, matched)
    return withDamage(log, record, intact, `WAL segment ${name} was changed or belongs to another cluster`)
  }
  const isReached = matched === bytes || (tail !== undefined && tail.end >= record.lsn)
  return isReached ? tail : withDamage(log, record, tail, `WAL segment ${name} is damaged`)
}

type Walk = (last: bigint, limit?: Lsn) => Promise<WalTail | undefined>

/**
 * The segment lacks its recorded digest. If it has an older one, it is the right file and intact up to the first damaged
 * record. If there is no damaged record, or not even an older digest, only what has a digest is trusted: the file may be
 * that of another cluster.
 */
async function findIntactPart(walk: Walk, record: EndRecord, number: bigint, matched: number) {
  const tail = await walk(number)
  if (matched > 0 && tail !== undefined && tail.end < record.lsn) return tail
  const limit = segmentStart(number) + BigInt(matched)
  return walk(segmentNumber(limit - 1n), limit)
}

function withDamage({ from }: SegmentSequence, { lsn, at }: EndRecord, tail: WalTail | undefined, reason: string) {
  const damage: LogDamage = { position: tail?.end ?? from, recorded: { lsn, at }, reason }
  return { end: tail?.end ?? from, newestCommit: tail?.newestCommit, damage }
}

/** The start of the first segment that differs from its seal. */
export async function findAltered(log: SegmentSequence, { files }: Seals): Promise<Lsn | undefined> {
  for (let number = segmentNumber(log.from); number <= log.last; number += 1n) {
    const name = segmentName(log.timeline, number)
    const seal = files.get(name)
    if (!seal) continue
    const [found] = await readMarks(log.directory, name, [Number(segmentBytes)])
    if (found?.sha256 !== seal.sha256) return segmentStart(number)
  }
  return undefined
}

function minimum(a: bigint, b: bigint): bigint {
  return a < b ? a : b
}
