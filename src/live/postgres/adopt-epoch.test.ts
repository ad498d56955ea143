import { expect, test } from 'vitest'
import type { BackupDescription } from '../../drivers/repository/driver.ts'
import { formatLsn, type Lsn, parseLsn, segmentBytes } from '../../model/postgres/wal.ts'
import { readEpoch } from './adopt-epoch.ts'

/** Describes a backup in this segment, made at this minute. */
function backup(segment: number, minute: number): BackupDescription {
  const at = (second: string) => `2026-11-15T10:${String(minute).padStart(2, '0')}:${second}Z`
  const place = BigInt(segment) * segmentBytes
  return {
    clusterId: 'abcdefghij123456',
    clusterName: 'shop',
    orgSlug: 'acme',
    label: `20261115-10${String(minute).padStart(2, '0')}00F`,
    epoch: 2,
    pgMajor: '17',
    timeline: 1,
    startLsn: formatLsn(place + 0x28n),
    stopLsn: formatLsn(place + 0x100n),
    startedAt: at('00'),
    stoppedAt: at('05'),
    sizeBytes: 40,
    settings: {},
  }
}

/** An archive with these segments, the last one with WAL up to this byte. */
function archive(segments: number[], bytes: bigint, newestCommit?: bigint) {
  const end = (from: Lsn) => {
    let next = from / segmentBytes
    if (!segments.includes(Number(next))) return undefined
    while (segments.includes(Number(next))) next += 1n
    return next * segmentBytes
  }
  return {
    archiveEnd: async (_id: string, _epoch: number, _timeline: number, from: Lsn) => end(from),
    async archiveTail(_id: string, _epoch: number, _timeline: number, from: Lsn) {
      const found = end(from)
      return found === undefined ? undefined : { end: found - segmentBytes + bytes, newestCommit }
    },
  }
}

const none = new Set<string>()
const micros = (time: string) => BigInt(Date.parse(time)) * 1000n
const damages = (backups: { label: string; damage: string | null }[]) =>
  backups.map(({ label, damage }) => [label.slice(9, 13), damage === null])

test('a gapless archive covers its oldest backup up to a second before its newest commit', async () => {
  const commit = micros('2026-11-15T10:30:00Z')
  const { epoch, backups } = await readEpoch(
    archive([2, 3, 4, 5], 0x5000n, commit),
    [backup(2, 1), backup(4, 20)],
    none,
  )
  expect(epoch).toEqual({
    epoch: 2,
    timeline: 1,
    startLsn: '0/2000028',
    startedAt: '2026-11-15T10:01:00Z',
    latestAt: commit - 1_000_000n,
    latestLsn: '0/5005000',
  })
  expect(damages(backups)).toEqual([
    ['1020', true],
    ['1001', true],
  ])
})

test('an idle cluster can be restored to the end of its backup', async () => {
  for (const commit of [undefined, micros('2026-11-15T09:00:00Z')]) {
    const { epoch } = await readEpoch(archive([2], 0x5000n, commit), [backup(2, 1)], none)
    expect(epoch).toMatchObject({ latestAt: micros('2026-11-15T10:01:05Z'), latestLsn: '0/2005000' })
  }
})

test('a pinned backup before a gap is usable alone if its own WAL is complete', async () => {
  const [first, second, third] = [backup(2, 1), backup(4, 10), backup(6, 20)]
  const pinned = new Set([first.label, second.label])
  const { epoch, backups } = await readEpoch(archive([2, 6], 0x5000n), [first, second, third], pinned)
  expect(epoch).toMatchObject({ startLsn: '0/6000028' })
  expect(backups).toMatchObject([
    { label: third.label, pinned: false, alone: false, damage: null },
    { label: second.label, pinned: true, alone: false, damage: expect.any(String) },
    { label: first.label, pinned: true, alone: true, damage: null },
  ])
})

test('a backup before a gap is damaged', async () => {
  const { epoch, backups } = await readEpoch(archive([2, 4, 5], 0x5000n), [backup(2, 1), backup(4, 20)], none)
  expect(epoch).toMatchObject({ startLsn: '0/4000028', latestLsn: '0/5005000' })
  expect(damages(backups)).toEqual([
    ['1020', true],
    ['1001', false],
  ])
})

test('a backup without its complete WAL is damaged', async () => {
  const { epoch, backups } = await readEpoch(archive([2, 3, 4], 0x80n), [backup(2, 1), backup(4, 20)], none)
  expect(epoch).toMatchObject({ startLsn: '0/2000028', latestLsn: '0/4000080' })
  expect(parseLsn(epoch!.latestLsn)).toBeLessThan(parseLsn(backup(4, 20).stopLsn))
  expect(damages(backups)).toEqual([
    ['1020', false],
    ['1001', true],
  ])
})

test('there is no epoch without WAL', async () => {
  expect((await readEpoch(archive([], 0n), [backup(2, 1)], none)).epoch).toBeUndefined()
})
