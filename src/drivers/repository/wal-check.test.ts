import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { commitRecord, fillerRecord, writeLog } from '../../../test/support/postgres/wal-log.ts'
import { segmentBytes, segmentStart } from '../../model/postgres/wal.ts'
import { checkSegmentRecords } from './wal-check.ts'

const first = 3n
const base = segmentStart(first)
const megabyte = 1024 ** 2

/** Two segments and a bit, with records of a megabyte that cross their boundaries. */
const log = writeLog(base, [
  commitRecord(1n),
  ...Array.from({ length: 34 }, () => fillerRecord(megabyte)),
  commitRecord(2n),
])

/** Looks at the log with one bit changed. */
async function withFlipped<T>(lsn: bigint, look: () => Promise<T>): Promise<T> {
  log.flip(lsn)
  try {
    return await look()
  } finally {
    log.flip(lsn)
  }
}

describe('a segment without a digest', () => {
  test('is intact if all its records are, with those that continue in the next one', async () => {
    expect(await checkSegmentRecords(log.read, first, log.end, false)).toEqual({ is: 'intact' })
    expect(await checkSegmentRecords(log.read, first + 1n, log.end, false)).toEqual({ is: 'intact' })
    expect(await checkSegmentRecords(log.read, first + 1n, log.end, true)).toEqual({ is: 'intact' })
  })

  test('is damaged by any changed bit of its records, also by one of the record that began before it', async () => {
    const start = Number(segmentBytes)
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: start, max: 2 * start - 1 }), async (at) => {
        // The timeline of a page, its magic number and its padding belong to no record.
        fc.pre(at % 8192 >= 40)
        const check = () => checkSegmentRecords(log.read, first + 1n, log.end, true)
        expect(await withFlipped(base + BigInt(at), check)).toMatchObject({ is: 'damaged' })
      }),
      { numRuns: 10 },
    )
  })

  test('is not damaged by what is wrong in the one before it', async () => {
    const check = (number: bigint, withBefore: boolean) => () =>
      checkSegmentRecords(log.read, number, log.end, withBefore)
    const flipped = log.ends[3]! + 30n
    expect(await withFlipped(flipped, check(first, false))).toMatchObject({ is: 'damaged' })
    expect(await withFlipped(flipped, check(first + 1n, true))).toEqual({ is: 'intact' })
  })

  test('is not judged before the end of its last record is archived', async () => {
    const until = segmentStart(first + 1n) + 100n
    const read = async (number: bigint) => (number === first ? log.read(first) : Buffer.alloc(Number(segmentBytes)))
    const check = () => checkSegmentRecords(read, first, until, false)
    expect(await check()).toEqual({ is: 'incomplete' })
    expect(await withFlipped(log.ends[3]! + 30n, check)).toMatchObject({ is: 'damaged' })
  })

  test('that a single record fills has the right pages', async () => {
    const single = writeLog(base, [fillerRecord(40 * megabyte), commitRecord(1n)])
    const check = () => checkSegmentRecords(single.read, first + 1n, single.end, false)
    expect(await check()).toEqual({ is: 'intact' })
    single.flip(segmentStart(first + 1n) + 8192n * 7n + 8n)
    expect(await check()).toMatchObject({ is: 'damaged' })
  })

  test('whose rest was replaced by zeros is damaged', async () => {
    const zeroed = Buffer.from(await log.read(first))
    zeroed.fill(0, Number(log.ends[5]! - base))
    const read = async (number: bigint) => (number === first ? zeroed : log.read(number))
    expect(await checkSegmentRecords(read, first, log.end, false)).toEqual({ is: 'damaged', at: log.ends[5]! })
  })
})
