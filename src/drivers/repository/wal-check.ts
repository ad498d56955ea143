// Verifies the structure of archived segments that have no digest yet: the headers of their pages, and the chain and the
// checksums of their records.
import { type Lsn, segmentNumber, segmentStart } from '../../model/postgres/wal.ts'
import { LogReader, type ReadSegment } from './wal-cut.ts'
import { pageBytes } from './wal-tail.ts'

export type SegmentCheck =
  | { is: 'intact' }
  /** Its last record continues in WAL that was not archived yet. */
  | { is: 'incomplete' }
  | { is: 'damaged'; at: Lsn }

/** How many segments after the verified one are read for a record that continues in them. Longer ones are not verified. */
const maxAhead = 4n

/**
 * Verifies the records of a segment, and the one that begins in the segment before it if that one can be used. WAL from
 * `until` on may be anything.
 */
export async function checkSegmentRecords(
  read: ReadSegment,
  number: bigint,
  until: Lsn,
  withBefore: boolean,
): Promise<SegmentCheck> {
  const [start, end] = [segmentStart(number), segmentStart(number + 1n)]
  const last = minimum(segmentNumber(until - 1n), number + maxAhead)
  const log = await LogReader.open(read, withBefore ? number - 1n : number, last, true)
  while (!log.isEmpty && (await log.next(end)) !== undefined);
  const { position, stoppedAt } = log
  // Of a record that fills the segment, and began earlier, only the headers of the pages can be verified.
  if (log.isEmpty && stoppedAt >= end) return { is: 'intact' }
  if (!log.isEmpty && position >= end) return { is: 'intact' }
  if (stoppedAt >= until - (until % BigInt(pageBytes))) return { is: 'incomplete' }
  if (stoppedAt >= segmentStart(last + 1n)) return { is: 'intact' }
  // The segment before was damaged after it got its digest.
  if (stoppedAt < start) return checkSegmentRecords(read, number, until, false)
  return { is: 'damaged', at: log.isEmpty || position < start ? stoppedAt : position }
}

function minimum(a: bigint, b: bigint): bigint {
  return a < b ? a : b
}
