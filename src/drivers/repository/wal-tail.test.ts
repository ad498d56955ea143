import { describe, expect, test } from 'vitest'
import { crc32c } from '../../model/postgres/crc32c.ts'
import { segmentBytes, segmentStart } from '../../model/postgres/wal.ts'
import { findTail } from './wal-tail.ts'

const pageBytes = 8192
const first = 3n
const year2000 = 946_684_800_000_000n

interface Written {
  segments: Buffer[]
  /** The end of each record. */
  ends: bigint[]
}

/** Writes WAL like PostgreSQL, from the start of segment 3, with zeros after the last record. */
function writeLog(records: { rmid: number; info: number; data: Buffer }[]): Written {
  const base = segmentStart(first)
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
  return { segments, ends }
}

const filler = (bytes: number) => ({ rmid: 10, info: 0, data: Buffer.alloc(bytes, 7) })

function commit(micros: bigint) {
  const data = Buffer.alloc(10)
  data[0] = 255
  data[1] = 8
  data.writeBigInt64LE(micros - year2000, 2)
  return { rmid: 1, info: 0, data }
}

const tailOf = (segments: Buffer[]) =>
  findTail(async (number) => segments[Number(number - first)]!, first, first + BigInt(segments.length) - 1n)

describe('the end of archived WAL', () => {
  test('is the end of its last record, with the latest commit timestamp', async () => {
    const { segments, ends } = writeLog([filler(100), commit(5_000n), filler(20_000), commit(4_000n), filler(1)])
    expect(await tailOf(segments)).toEqual({ end: ends.at(-1), newestCommit: 5_000n })
  })

  test('is before an incomplete record', async () => {
    const { segments, ends } = writeLog([commit(1_000n), filler(30_000)])
    segments[0]!.fill(0, 16_384)
    expect(await tailOf(segments)).toEqual({ end: ends[0], newestCommit: 1_000n })
  })

  test('is before a damaged record', async () => {
    const { segments, ends } = writeLog([commit(1_000n), filler(100), filler(100)])
    const place = Number(ends[1]! - segmentStart(first)) + 60
    segments[0]![place]! ^= 1
    expect(await tailOf(segments)).toEqual({ end: ends[1], newestCommit: 1_000n })
  })

  test('is found when the last segment is still empty', async () => {
    const { segments, ends } = writeLog([commit(1_000n)])
    expect(await tailOf([...segments, Buffer.alloc(Number(segmentBytes))])).toEqual({
      end: ends[0],
      newestCommit: 1_000n,
    })
  })

  test('is found when the last segment contains only the rest of a record', async () => {
    const { segments, ends } = writeLog([commit(1_000n), filler(Number(segmentBytes))])
    expect(segments).toHaveLength(2)
    expect(await tailOf(segments)).toEqual({ end: ends[1], newestCommit: 1_000n })
  })

  test('is undefined in WAL of zeros', async () => {
    expect(await tailOf([Buffer.alloc(Number(segmentBytes))])).toBeUndefined()
  })
})
