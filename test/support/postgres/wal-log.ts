import { crc32c } from '../../../src/model/postgres/crc32c.ts'
import { segmentBytes, segmentNumber } from '../../../src/model/postgres/wal.ts'

const pageBytes = 8192
const year2000 = 946_684_800_000_000n

export interface LogRecord {
  rmid: number
  info: number
  data: Buffer
}

export interface WrittenLog {
  segments: Buffer[]
  /** The end of each record. */
  ends: bigint[]
  end: bigint
  read(number: bigint): Promise<Buffer>
  /** Changes a bit at a position. */
  flip(lsn: bigint, bit?: number): void
}

/** Writes WAL like PostgreSQL, from the start of a segment, with zeros after the last record. */
export function writeLog(base: bigint, records: LogRecord[]): WrittenLog {
  const pages: Buffer[] = []
  const ends: bigint[] = []
  let at = 0
  let before = 0n

  function enterPage(remaining: number): void {
    const isFirst = BigInt(at) % segmentBytes === 0n
    const header = Buffer.alloc(isFirst ? 40 : 24)
    header.writeUInt16LE((remaining > 0 ? 1 : 0) | (isFirst ? 2 : 0), 2)
    header.writeBigUInt64LE(base + BigInt(at), 8)
    header.writeUInt32LE(remaining, 16)
    pages.push(Buffer.alloc(pageBytes))
    put(header)
  }

  function put(bytes: Buffer): void {
    bytes.copy(pages.at(-1)!, at % pageBytes)
    at += bytes.length
  }

  for (const { rmid, info, data } of records) {
    if (at % pageBytes === 0) enterPage(0)
    const record = Buffer.concat([Buffer.alloc(24), data])
    record.writeUInt32LE(record.length, 0)
    record.writeBigUInt64LE(before, 8)
    record[16] = info
    record[17] = rmid
    record.writeUInt32LE(crc32c(record.subarray(0, 20), crc32c(data, 0)), 20)
    before = base + BigInt(at)
    for (let rest = record; rest.length > 0; ) {
      if (at % pageBytes === 0) enterPage(rest.length)
      const room = pageBytes - (at % pageBytes)
      put(rest.subarray(0, room))
      rest = rest.subarray(room)
    }
    at = Math.ceil(at / 8) * 8
    ends.push(base + BigInt(at))
  }
  const log = Buffer.alloc(Math.ceil(at / Number(segmentBytes)) * Number(segmentBytes))
  Buffer.concat(pages).copy(log)
  const segments = Array.from({ length: log.length / Number(segmentBytes) }, (_, n) =>
    log.subarray(n * Number(segmentBytes), (n + 1) * Number(segmentBytes)),
  )
  return {
    segments,
    ends,
    end: ends.at(-1)!,
    read: async (number) => segments[Number(number - segmentNumber(base))]!,
    flip: (lsn, bit = 0) => {
      log[Number(lsn - base)]! ^= 1 << bit
    },
  }
}

export function fillerRecord(bytes: number, fill = 7): LogRecord {
  return { rmid: 10, info: 0, data: Buffer.alloc(bytes, fill) }
}

export function commitRecord(micros: bigint): LogRecord {
  const data = Buffer.alloc(10)
  data[0] = 255
  data[1] = 8
  data.writeBigInt64LE(micros - year2000, 2)
  return { rmid: 1, info: 0, data }
}
