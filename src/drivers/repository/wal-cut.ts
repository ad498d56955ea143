// Finds the position in archived WAL that belongs to a time. Commits are stamped before their record is written, so the
// stamps are not quite in the order of the log.
import {
  formatLsn,
  type Lsn,
  segmentBytes,
  segmentName,
  segmentNumber,
  segmentStart,
} from '../../model/postgres/wal.ts'
import type { Micros } from '../../model/time.ts'
import { type StepBack, WalFileError, type WalRange } from './driver.ts'
import {
  findFirstRecord,
  findTimestamp,
  isSwitch,
  isValid,
  longHeaderBytes,
  maxRecordBytes,
  pageBytes,
  readRecord,
  recordHeaderBytes,
  roundUp,
  transactionManager,
} from './wal-tail.ts'

/** The largest number by which a record refers to a block (XLR_MAX_BLOCK_ID). */
const maxBlock = 32

export type ReadSegment = (number: bigint) => Promise<Buffer>

/** No commit waits longer than this between its stamp and its record, even on an overloaded host. */
const disorderMicros = 2_000_000n
/**
 * Reading ends when all stamps are later than the target by this, for as long as this. A clock that was ahead for a moment
 * between two samples stamped a few commits later than those behind them.
 */
const settledMicros = 5_000_000n

/** A record that ends a transaction. */
interface End {
  start: Lsn
  end: Lsn
  at: Micros
  isCommit: boolean
}

/**
 * The end of the last commit between two positions that was stamped at or before a time; `from` if there is none.
 * Throws if the log is damaged before reading may end: a few later stamps in front of the damage prove nothing, because
 * commits behind those of a clock that was ahead for a moment may belong to the time.
 */
export async function findCut(read: ReadSegment, timeline: number, time: Micros, { from, to }: WalRange): Promise<Lsn> {
  let cut = from
  let lateSince: Micros | undefined
  const log = await openLog(read, from, to)
  for await (const { end, at, isCommit } of readEnds(log, from, to)) {
    lateSince = at > time + settledMicros ? (lateSince ?? at) : undefined
    if (lateSince !== undefined && at > lateSince + settledMicros) return cut
    if (isCommit && at <= time && end > cut) cut = end
  }
  if (log.position >= to) return cut
  const name = segmentName(timeline, segmentNumber(log.position))
  throw new WalFileError('damaged', name, `the write-ahead log is damaged at ${formatLsn(log.position)}`)
}

/** The first record whose stamp shows that the clock was set back. The last record of the range may be incomplete. */
export async function findStepBack(read: ReadSegment, { from, to }: WalRange): Promise<StepBack | undefined> {
  let newest: Micros | undefined
  for await (const { start, at } of readEnds(await openLog(read, from, to), from, to)) {
    if (newest !== undefined && at < newest - disorderMicros) return { lsn: start, newest }
    if (newest === undefined || at > newest) newest = at
  }
  return undefined
}

function openLog(read: ReadSegment, from: Lsn, to: Lsn): Promise<LogReader> {
  return LogReader.open(read, segmentNumber(from), segmentNumber(to > from ? to - 1n : from))
}

async function* readEnds(log: LogReader, from: Lsn, to: Lsn): AsyncGenerator<End> {
  for (let found = await log.next(to); found !== undefined; found = await log.next(to)) {
    if (found.end > from && found.end <= to && found.at !== undefined) yield { ...found, at: found.at }
  }
}

interface Found extends Omit<End, 'at'> {
  at: Micros | undefined
}

/** COMMIT and COMMIT PREPARED. */
const commitKinds = [0x00, 0x30]

/** Walks along the records, with as many segments in memory as the current record touches. */
export class LogReader {
  readonly #read: ReadSegment
  readonly #last: bigint
  /** Whether the checksums of all records are compared. */
  readonly #isStrict: boolean
  #first: bigint
  #log: Buffer
  #at: number | undefined
  #before: Lsn | undefined
  #stoppedAt: Lsn = 0n

  private constructor(read: ReadSegment, first: bigint, last: bigint, log: Buffer, isStrict: boolean) {
    this.#read = read
    this.#first = first
    this.#last = last
    this.#log = log
    this.#isStrict = isStrict
  }

  static async open(read: ReadSegment, first: bigint, last: bigint, isStrict = false): Promise<LogReader> {
    const reader = new LogReader(read, first, last, await read(first), isStrict)
    let found = findFirstRecord(reader.#log, reader.#base)
    while (found.at === undefined && (await reader.#extend())) found = findFirstRecord(reader.#log, reader.#base)
    reader.#at = found.at
    reader.#stoppedAt = reader.#base + BigInt(found.stoppedAt)
    return reader
  }

  /** Where the next record begins. */
  get position(): Lsn {
    return this.#base + BigInt(this.#at ?? 0)
  }

  /** Whether no record starts in what was read. */
  get isEmpty(): boolean {
    return this.#at === undefined
  }

  /** How far the next record was followed before it turned out to be incomplete or damaged. */
  get stoppedAt(): Lsn {
    return this.#stoppedAt
  }

  /** The next record that ends a transaction, or the record that reaches the limit; undefined at the end of the log. */
  async next(limit: Lsn): Promise<Found | undefined> {
    while (this.position < limit) {
      const found = this.#step()
      if (found === undefined) {
        if (!this.#isIncomplete() || !(await this.#extend())) return undefined
      } else if (found.at !== undefined) return found
    }
    return undefined
  }

  get #base(): Lsn {
    return segmentStart(this.#first)
  }

  /** Moves behind the next record. Undefined if it is not complete, or not intact. */
  #step(): Found | undefined {
    if (this.#at === undefined || this.#at >= this.#log.length) return undefined
    return this.#stepWithinPage() ?? this.#stepAcrossPages()
  }

  /**
   * Most records lie within a page and change blocks. They are skipped without being copied. A record that refers to no block
   * may be one of a commit whose resource manager is damaged, so its checksum is compared.
   */
  #stepWithinPage(): Found | undefined {
    const [log, at] = [this.#log, this.#at!]
    const inPage = at % pageBytes
    if (this.#isStrict || inPage === 0 || inPage + recordHeaderBytes > pageBytes) return undefined
    const length = log.readUInt32LE(at)
    const manager = log[at + 17]!
    const isBlock = length > recordHeaderBytes && log[at + recordHeaderBytes]! <= maxBlock
    // The log manager has records that move to another segment.
    if (!isBlock || inPage + length > pageBytes || manager === transactionManager || manager === 0) return undefined
    const start = this.#base + BigInt(at)
    if (this.#before !== undefined && log.readBigUInt64LE(at + 8) !== this.#before) return undefined
    return this.#moveTo(start, roundUp(at + length, 8))
  }

  #stepAcrossPages(): Found | undefined {
    const record = readRecord(this.#log, this.#base, this.#at!)
    if (record?.end === undefined && record?.resumeAt !== undefined) {
      // After a crash the server wrote something else over the incomplete record.
      this.#before = undefined
      this.#at = record.resumeAt
      return this.#step()
    }
    if (record?.end === undefined || !isValid(record.bytes, this.#before)) {
      this.#stoppedAt = record ? this.#base + BigInt(record.stoppedAt) : this.position
      return undefined
    }
    const end = isSwitch(record.bytes) ? roundUp(record.end, Number(segmentBytes)) : record.end
    const isCommit = commitKinds.includes(record.bytes[16]! & 0x70)
    return this.#moveTo(this.#base + BigInt(record.start), end, findTimestamp(record.bytes), isCommit)
  }

  #moveTo(start: Lsn, end: number, at?: Micros, isCommit = false): Found {
    this.#before = start
    this.#at = end
    return { start, end: this.#base + BigInt(end), at, isCommit }
  }

  /** Whether the current record may continue in the next segment. */
  #isIncomplete(): boolean {
    const [log, at] = [this.#log, this.#at ?? 0]
    const start = at % pageBytes === 0 ? at + longHeaderBytes : at
    if (start + recordHeaderBytes > log.length) return true
    const length = log.readUInt32LE(start)
    const headers = (Math.ceil(length / pageBytes) + 1) * longHeaderBytes
    return length <= maxRecordBytes && start + length + headers > log.length
  }

  /** Reads the next segment and forgets those before the current record. */
  async #extend(): Promise<boolean> {
    const count = BigInt(this.#log.length) / segmentBytes
    const number = this.#first + count
    if (number > this.#last) return false
    const next = await this.#read(number)
    if (BigInt(next.length) !== segmentBytes) return false
    const done = Math.floor((this.#at ?? 0) / Number(segmentBytes)) * Number(segmentBytes)
    this.#log = Buffer.concat([this.#log.subarray(done), next])
    this.#first += BigInt(done) / segmentBytes
    if (this.#at !== undefined) this.#at -= done
    return true
  }
}
