import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { commitRecord, fillerRecord, writeLog } from '../../../test/support/postgres/wal-log.ts'
import { segmentBytes } from '../../model/postgres/wal.ts'
import { findCut, findStepBack } from './wal-cut.ts'

const first = 3n
const base = first * segmentBytes

describe('the position of a time', () => {
  test('is the end of the last commit stamped at or before it, also if a later one precedes it', async () => {
    const log = writeLog(base, [commitRecord(10n), commitRecord(30n), commitRecord(20n), commitRecord(40n)])
    const cut = (time: bigint) => findCut(log.read, 1, time, { from: base, to: log.end })
    expect(await cut(9n)).toBe(base)
    expect(await cut(10n)).toBe(log.ends[0])
    expect(await cut(20n)).toBe(log.ends[2])
    expect(await cut(29n)).toBe(log.ends[2])
    expect(await cut(30n)).toBe(log.ends[2])
    expect(await cut(40n)).toBe(log.ends[3])
  })

  test('is found behind commits of a clock that was ahead for a moment', async () => {
    const stamps = [10n, 600_000_000n, 600_100_000n, 20n, 5_000_021n, 600_000_000n, 30n]
    const log = writeLog(base, stamps.map(commitRecord))
    const cut = (time: bigint) => findCut(log.read, 1, time, { from: base, to: log.end })
    expect(await cut(10n)).toBe(log.ends[0])
    expect(await cut(20n)).toBe(log.ends[3])
    expect(await cut(30n)).toBe(log.ends[6])
  })

  test('is found in records of any size across pages and segments', async () => {
    const sizes = fc.array(fc.integer({ min: 0, max: 60_000 }), { minLength: 1, maxLength: 60 })
    await fc.assert(
      fc.asyncProperty(sizes, fc.integer({ min: 0, max: 61 }), async (lengths, wanted) => {
        const records = lengths.flatMap((bytes, index) => [fillerRecord(bytes), commitRecord(BigInt(index + 1))])
        const log = writeLog(base, records)
        const expected = wanted === 0 ? base : log.ends[Math.min(wanted, lengths.length) * 2 - 1]
        expect(await findCut(log.read, 1, BigInt(wanted), { from: base, to: log.end })).toBe(expected)
      }),
      { numRuns: 30 },
    )
  })

  test('is found behind a record that fills several segments', async () => {
    const log = writeLog(base, [commitRecord(1n), fillerRecord(40_000_000), commitRecord(2n), commitRecord(3n)])
    expect(await findCut(log.read, 1, 2n, { from: base, to: log.end })).toBe(log.ends[2])
    const later = (first + 1n) * segmentBytes
    expect(await findCut(log.read, 1, 2n, { from: later, to: log.end })).toBe(log.ends[2])
  })

  test('is not known if the log is damaged before the end of the range', async () => {
    const records = Array.from({ length: 50 }, (_, index) => commitRecord(BigInt(index)))
    const log = writeLog(base, records)
    for (const at of [log.ends[9]!, log.ends[30]!]) {
      const damaged = writeLog(base, records)
      damaged.flip(at + 26n)
      await expect(findCut(damaged.read, 1, 45n, { from: base, to: log.end })).rejects.toThrow('damaged at')
    }
  })

  test('does not need the log after it', async () => {
    const late = [1n, 9_000_000n, 14_000_001n].map(commitRecord)
    const log = writeLog(base, [...late, commitRecord(14_000_002n)])
    log.flip(log.ends[2]! + 30n)
    expect(await findCut(log.read, 1, 5n, { from: base, to: log.end })).toBe(log.ends[0])
    const long = writeLog(base, [...late, fillerRecord(20_000_000)])
    const read = (number: bigint) => (number === first ? long.read(number) : Promise.reject(new Error('it is missing')))
    expect(await findCut(read, 1, 5n, { from: base, to: long.end })).toBe(long.ends[0])
    await expect(findCut(read, 1, 14_000_001n, { from: base, to: long.end })).rejects.toThrow('it is missing')
  })

  test('is not known if the damage makes a commit look like another record', async () => {
    const records = [commitRecord(10n), fillerRecord(50), commitRecord(20n), commitRecord(30n)]
    const managerOffset = 17n
    for (const bit of [0, 1, 2, 3, 4, 5, 6, 7]) {
      const log = writeLog(base, records)
      log.flip(log.ends[1]! + managerOffset, bit)
      await expect(findCut(log.read, 1, 20n, { from: base, to: log.end })).rejects.toThrow('damaged at')
    }
  })

  test('is not known if damage follows commits of a clock that may have been ahead for a moment', async () => {
    const records = [10n, 600_000_000n, 600_100_000n, 20n, 30n].map(commitRecord)
    const log = writeLog(base, records)
    const damaged = writeLog(base, records)
    damaged.flip(log.ends[2]! + 30n)
    await expect(findCut(damaged.read, 1, 20n, { from: base, to: log.end })).rejects.toThrow('damaged at')
    const long = writeLog(base, [...records.slice(0, 3), fillerRecord(20_000_000), ...records.slice(3)])
    const read = (number: bigint) => (number === first ? long.read(number) : Promise.reject(new Error('it is missing')))
    await expect(findCut(read, 1, 20n, { from: base, to: long.end })).rejects.toThrow('it is missing')
  })
})

test('a clock that was set back shows in the log', async () => {
  const even = writeLog(base, [commitRecord(5_000_000n), commitRecord(3_100_000n), commitRecord(6_000_000n)])
  expect(await findStepBack(even.read, { from: base, to: even.end })).toBeUndefined()
  const changed = writeLog(base, [commitRecord(5_000_000n), commitRecord(2_900_000n)])
  expect(await findStepBack(changed.read, { from: base, to: changed.end })).toEqual({
    lsn: changed.ends[0],
    newest: 5_000_000n,
  })
})
