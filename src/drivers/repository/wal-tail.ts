// Where the log in an archive really ends. The receiver fills a segment with zeros before it writes to it, so that names
// and sizes say nothing about the last one: only the chain of its records does.

import { type Lsn, segmentBytes, segmentStart } from '../../model/postgres/wal.ts'
import type { Micros } from '../../model/time.ts'

export interface LogTail {
  /** The end of the last whole record. */
  end: Lsn
  /** The newest time that a transaction near the end was stamped with. */
  newestCommit: Micros | undefined
}

/** How far back a stamp is looked for. Who wrote this much without a commit has none that is worth the reading. */
const mostSegments = 4

/** Looks from the last segment backwards, because a record may fill it from the one before. */
export async function findTail(
  read: (number: bigint) => Promise<Buffer>,
  first: bigint,
  last: bigint,
): Promise<LogTail | undefined> {
  let log = Buffer.alloc(0)
  let tail: LogTail | undefined
  for (let number = last; number >= first && last - number < mostSegments; number -= 1n) {
    log = Buffer.concat([await read(number), log])
    const found = walk(log, segmentStart(number))
    if (found) tail = { end: tail?.end ?? found.end, newestCommit: found.newestCommit }
    if (tail?.newestCommit !== undefined) return tail
  }
  return tail
}

const pageBytes = 8192
const headerBytes = 24
const longHeaderBytes = 40
const isContinued = 0x1
const isLong = 0x2
const isOverwritten = 0x8

interface Page {
  /** Where its records begin. */
  body: number
  flags: number
  /** Bytes of a record that began before it. */
  remaining: number
}

// XLogPageHeaderData: magic, flags, timeline, place, remaining length.
function findPage(log: Buffer, base: Lsn, at: number): Page | undefined {
  if (at + pageBytes > log.length || log.readBigUInt64LE(at + 8) !== base + BigInt(at)) return undefined
  const flags = log.readUInt16LE(at + 2)
  return { body: at + (flags & isLong ? longHeaderBytes : headerBytes), flags, remaining: log.readUInt32LE(at + 16) }
}

function walk(log: Buffer, base: Lsn): LogTail | undefined {
  let at = findFirstRecord(log, base)
  let before: Lsn | undefined
  let tail: LogTail | undefined
  while (at !== undefined) {
    const record = readRecord(log, base, at)
    if (record === undefined || record.end === undefined || !isSound(record.bytes, before)) {
      at = record?.resumeAt
      before = undefined
      continue
    }
    before = base + BigInt(record.start)
    const stamp = findStamp(record.bytes)
    const newest = tail?.newestCommit
    tail = {
      end: base + BigInt(record.end),
      newestCommit: stamp !== undefined && (newest === undefined || stamp > newest) ? stamp : newest,
    }
    at = isSwitch(record.bytes) ? roundUp(record.end, Number(segmentBytes)) : record.end
  }
  return tail
}

/** Behind what the segment before has begun. */
function findFirstRecord(log: Buffer, base: Lsn): number | undefined {
  const page = findPage(log, base, 0)
  if (page === undefined || (page.flags & isContinued) === 0) return page?.body
  const rest = gather(log, base, { at: page.body, bytes: page.remaining })
  return 'end' in rest ? roundUp(rest.end, 8) : rest.resumeAt
}

interface Gathered {
  bytes: Buffer
  end: number
}

/** Nothing whole, and where the log goes on when the server that wrote it crashed here and began anew. */
interface Torn {
  resumeAt: number | undefined
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
    if (page === undefined) return { resumeAt: undefined }
    if (page.flags & isOverwritten) return { resumeAt: page.body }
    if ((page.flags & isContinued) === 0 || page.remaining !== bytes) return { resumeAt: undefined }
    at = page.body
  }
}

interface LogRecord {
  bytes: Buffer
  start: number
  end: number | undefined
  resumeAt: number | undefined
}

const recordHeaderBytes = 24
/** PostgreSQL writes no larger ones. */
const mostRecordBytes = 1020 * 1024 * 1024

function readRecord(log: Buffer, base: Lsn, at: number): LogRecord | undefined {
  const start = at % pageBytes === 0 ? findPage(log, base, at)?.body : at
  if (start === undefined) return undefined
  const length = log.readUInt32LE(start)
  if (length < recordHeaderBytes || length > mostRecordBytes) return undefined
  const found = gather(log, base, { at: start, bytes: length })
  if ('resumeAt' in found) return { bytes: Buffer.alloc(0), start, end: undefined, resumeAt: found.resumeAt }
  return { bytes: found.bytes, start, end: roundUp(found.end, 8), resumeAt: undefined }
}

// XLogRecord: length, transaction, place of the record before, flags, resource manager, two bytes of padding, checksum.
function isSound(record: Buffer, before: Lsn | undefined): boolean {
  if (before !== undefined && record.readBigUInt64LE(8) !== before) return false
  const checksum = crc32c(record.subarray(0, 20), crc32c(record.subarray(recordHeaderBytes), 0))
  return checksum === record.readUInt32LE(20)
}

function isSwitch(record: Buffer): boolean {
  return record[17] === 0 && (record[16]! & 0xf0) === 0x40
}

/** Commits, aborts, and both of what was prepared. */
const stampedKinds = new Set([0x00, 0x20, 0x30, 0x40])
const transactionManager = 1
const year2000 = 946_684_800_000_000n
/** The headers that may stand before the data of such a record, and their sizes. */
const skippedHeaders: Record<number, number> = { 252: 5, 253: 3 }

function findStamp(record: Buffer): Micros | undefined {
  if (record[17] !== transactionManager || !stampedKinds.has(record[16]! & 0x70)) return undefined
  let at = recordHeaderBytes
  while (skippedHeaders[record[at]!] !== undefined) at += skippedHeaders[record[at]!]!
  // The data follows its length, of one byte or of four.
  const data = at + (record[at] === 255 ? 2 : 5)
  return data + 8 > record.length ? undefined : record.readBigInt64LE(data) + year2000
}

const crcTable = Uint32Array.from({ length: 256 }, (_, index) => {
  let value = index
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1
  return value
})

/** The checksum with which PostgreSQL guards records; `zlib` has another polynomial. */
export function crc32c(bytes: Uint8Array, before: number): number {
  let crc = ~before
  for (let at = 0; at < bytes.length; at++) crc = crcTable[(crc ^ bytes[at]!) & 0xff]! ^ (crc >>> 8)
  return ~crc >>> 0
}

function roundUp(value: number, to: number): number {
  return Math.ceil(value / to) * to
}
