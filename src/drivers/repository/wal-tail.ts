// Finds the actual end of archived WAL. The receiver fills a segment with zeros before it writes to it, so the name and
// size of the last segment do not show it; only the chain of its records does.
import { crc32c } from '../../model/postgres/crc32c.ts'
import { type Lsn, lastLsn, segmentBytes, segmentStart } from '../../model/postgres/wal.ts'
import type { Micros } from '../../model/time.ts'
import type { WalTail } from './driver.ts'

/** The number of segments that are searched for a commit; reading further back is not worth the time. */
const maxSegments = 4

/** Reads backwards from the last segment, because a record that began in an earlier one may fill it entirely. */
export async function findTail(
  read: (number: bigint) => Promise<Buffer>,
  first: bigint,
  last: bigint,
  /** Records that end after this position are not considered. */
  before: Lsn = lastLsn,
): Promise<WalTail | undefined> {
  let log = Buffer.alloc(0)
  let tail: WalTail | undefined
  for (let number = last; number >= first && last - number < maxSegments; number -= 1n) {
    log = Buffer.concat([await read(number), log])
    const found = walkRecords(log, segmentStart(number), before)
    if (found) tail = { end: tail?.end ?? found.end, newestCommit: found.newestCommit }
    if (tail?.newestCommit !== undefined) return tail
  }
  return tail
}

export const pageBytes = 8192
export const headerBytes = 24
export const longHeaderBytes = 40
const isContinued = 0x1
const isLong = 0x2
const isOverwritten = 0x8

interface Page {
  /** The offset of the first byte after the header. */
  body: number
  flags: number
  /** The number of bytes that belong to a record from an earlier page. */
  remaining: number
}

// XLogPageHeaderData: magic, flags, timeline, position, remaining length.
function findPage(log: Buffer, base: Lsn, at: number): Page | undefined {
  if (at + pageBytes > log.length || log.readBigUInt64LE(at + 8) !== base + BigInt(at)) return undefined
  const flags = log.readUInt16LE(at + 2)
  return { body: at + (flags & isLong ? longHeaderBytes : headerBytes), flags, remaining: log.readUInt32LE(at + 16) }
}

function walkRecords(log: Buffer, base: Lsn, limit: Lsn): WalTail | undefined {
  let { at } = findFirstRecord(log, base)
  let before: Lsn | undefined
  let tail: WalTail | undefined
  while (at !== undefined) {
    const record = readRecord(log, base, at)
    if (record === undefined || record.end === undefined || !isValid(record.bytes, before)) {
      at = record?.resumeAt
      before = undefined
      continue
    }
    if (base + BigInt(record.end) > limit) break
    before = base + BigInt(record.start)
    const timestamp = findTimestamp(record.bytes)
    const newest = tail?.newestCommit
    tail = {
      end: base + BigInt(record.end),
      newestCommit: timestamp !== undefined && (newest === undefined || timestamp > newest) ? timestamp : newest,
    }
    at = isSwitch(record.bytes) ? roundUp(record.end, Number(segmentBytes)) : record.end
  }
  return tail
}

export interface FirstRecord {
  at: number | undefined
  /** Without one, how far the record from before the log was followed. */
  stoppedAt: number
}

/** The offset of the first record that starts in this log. */
export function findFirstRecord(log: Buffer, base: Lsn): FirstRecord {
  const page = findPage(log, base, 0)
  if (page === undefined || (page.flags & isContinued) === 0) return { at: page?.body, stoppedAt: 0 }
  const rest = gather(log, base, { at: page.body, bytes: page.remaining })
  return 'end' in rest ? { at: roundUp(rest.end, 8), stoppedAt: 0 } : { at: rest.resumeAt, stoppedAt: rest.stoppedAt }
}

interface Gathered {
  bytes: Buffer
  end: number
}

/** An incomplete record. After a crash the server overwrote it and continued at `resumeAt`. */
interface Torn {
  resumeAt: number | undefined
  /** The page that does not continue it. */
  stoppedAt: number
}

function gather(log: Buffer, base: Lsn, wanted: { at: number; bytes: number }): Gathered | Torn {
  const parts: Buffer[] = []
  let { at, bytes } = wanted
  for (;;) {
    const room = roundUp(at + 1, pageBytes) - at
    parts.push(log.subarray(at, at + Math.min(room, bytes)))
    if (bytes <= room) return { bytes: Buffer.concat(parts), end: at + bytes }
    bytes -= room
    const page = findPage(log, base, at + room)
    const stoppedAt = at + room
    if (page === undefined) return { resumeAt: undefined, stoppedAt }
    if (page.flags & isOverwritten) return { resumeAt: page.body, stoppedAt }
    if ((page.flags & isContinued) === 0 || page.remaining !== bytes) return { resumeAt: undefined, stoppedAt }
    at = page.body
  }
}

interface LogRecord {
  bytes: Buffer
  start: number
  end: number | undefined
  resumeAt: number | undefined
  stoppedAt: number
}

export const recordHeaderBytes = 24
/** The limit of PostgreSQL (XLogRecordMaxSize). */
export const maxRecordBytes = 1020 * 1024 * 1024

export function readRecord(log: Buffer, base: Lsn, at: number): LogRecord | undefined {
  const start = at % pageBytes === 0 ? findPage(log, base, at)?.body : at
  if (start === undefined) return undefined
  const length = log.readUInt32LE(start)
  if (length < recordHeaderBytes || length > maxRecordBytes) return undefined
  const found = gather(log, base, { at: start, bytes: length })
  if ('resumeAt' in found) return { bytes: Buffer.alloc(0), start, end: undefined, ...found }
  const end = roundUp(found.end, 8)
  return { bytes: found.bytes, start, end, resumeAt: undefined, stoppedAt: end }
}

// XLogRecord: length, transaction, position of the previous record, flags, resource manager, two bytes of padding, checksum.
export function isValid(record: Buffer, before: Lsn | undefined): boolean {
  if (before !== undefined && record.readBigUInt64LE(8) !== before) return false
  const checksum = crc32c(record.subarray(0, 20), crc32c(record.subarray(recordHeaderBytes)))
  return checksum === record.readUInt32LE(20)
}

export function isSwitch(record: Buffer): boolean {
  return record[17] === 0 && (record[16]! & 0xf0) === 0x40
}

/** COMMIT, ABORT, COMMIT PREPARED and ABORT PREPARED. */
const timestampedKinds = new Set([0x00, 0x20, 0x30, 0x40])
export const transactionManager = 1
const year2000 = 946_684_800_000_000n
/** Sizes of the optional headers before the main data of such a record, by their block id. */
const skippedHeaders: Record<number, number> = { 252: 5, 253: 3 }

export function findTimestamp(record: Buffer): Micros | undefined {
  if (record[17] !== transactionManager || !timestampedKinds.has(record[16]! & 0x70)) return undefined
  let at = recordHeaderBytes
  while (skippedHeaders[record[at]!] !== undefined) at += skippedHeaders[record[at]!]!
  // The main data follows its length, which takes one byte (id 255) or four bytes (id 254).
  const data = at + (record[at] === 255 ? 2 : 5)
  return data + 8 > record.length ? undefined : record.readBigInt64LE(data) + year2000
}

export function roundUp(value: number, to: number): number {
  return Math.ceil(value / to) * to
}
