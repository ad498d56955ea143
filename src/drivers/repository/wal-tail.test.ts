import { describe, expect, test } from 'vitest'
import { commit, filler, first, writeLog } from '../../../test/support/repository/wal.ts'
import { segmentBytes, segmentStart } from '../../model/postgres/wal.ts'
import { findTail } from './wal-tail.ts'

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
