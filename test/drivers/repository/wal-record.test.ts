import { cpSync, mkdirSync, readFileSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { afterAll, beforeEach, describe, expect, test } from 'vitest'
import { directoryRepository } from '../../../src/drivers/repository/directory.ts'
import { UnusableArchiveError } from '../../../src/drivers/repository/driver.ts'
import { newId } from '../../../src/model/ids.ts'
import { formatLsn, segmentBytes, segmentName, segmentStart } from '../../../src/model/postgres/wal.ts'
import { describedBackup } from '../../support/backup-description.ts'
import { commitRecord as commit, fillerRecord as filler, writeLog } from '../../support/postgres/wal-log.ts'
import { removeTemporaryHome, temporaryDirectory } from '../../support/temporary-home.ts'

const first = 3n

const directory = temporaryDirectory()
const root = `${directory}/repository`
let repository = directoryRepository(root)
let id = newId()
const epoch = 1
const from = segmentStart(first)
const at = 1_793_613_600_000_000n
const name = (n: number) => segmentName(1, first + BigInt(n))
const archive = (cluster = id) => `${root}/${cluster}/archive/${epoch}`
const lastName = '.partial'

beforeEach(() => {
  repository = directoryRepository(root)
  id = newId()
})
afterAll(() => removeTemporaryHome(directory))

/** Stores segments as the receiver does: the last one is incomplete. */
async function store(segments: Buffer[], cluster = id): Promise<void> {
  await repository.ensureArchive(cluster, epoch)
  segments.forEach((bytes, n) => {
    writeFileSync(`${archive(cluster)}/${name(n)}${n === segments.length - 1 ? lastName : ''}`, bytes)
  })
}

const record = (lsn: bigint) => repository.recordEnd(id, epoch, { timeline: 1, lsn, at })
const tail = () => repository.archiveTail(id, epoch, 1, from)

/** Changes one bit of an archived file. */
function flip(file: string, offset: number): void {
  const bytes = readFileSync(file)
  bytes[offset]! ^= 1
  writeFileSync(file, bytes)
}

const small = [commit(1_000n), filler(500), filler(20_000), commit(2_000n), filler(300)]

test('the position of a time is not looked for in a segment of a sibling, whose later times would end the search', async () => {
  const second = 1_000_000n
  const logWith = (offset: bigint) => {
    const middle = [20n, 40n, 60n, 80n].map((seconds) => commit(offset + seconds * second))
    const head = [commit(second), filler(17_000_000)]
    return writeLog(segmentStart(first), [...head, ...middle, filler(20_000_000), commit(100n * second)])
  }
  const [own, sibling] = [logWith(-18n * second), logWith(1_000n * second)]
  await store(own.segments)
  while ((await repository.sealSegments(id, epoch, 1, own.end)).count > 0);
  const target = 90n * second
  const find = () => repository.findCut(id, epoch, 1, target, { from, to: own.end })
  const right = await find()
  expect(right).toBe(own.ends[5])
  writeFileSync(`${archive()}/${name(1)}`, sibling.segments[1]!)
  await expect(find()).rejects.toThrow(`WAL file ${name(1)} of ${id} differs from its recorded digest`)
})

describe('the end of a log', () => {
  test('is that of its last record if it reaches the recorded end, also beyond it', async () => {
    const { segments, ends } = writeLog(segmentStart(first), small)
    await store(segments)
    for (const end of ends.slice(0, 4)) await record(end)
    expect(await tail()).toEqual({ end: ends.at(-1), newestCommit: 2_000n })
    expect(await repository.findRecordedEnd(id, epoch)).toMatchObject({ lsn: ends[3], at })
  })

  test('never moves back, and survives a new process', async () => {
    const { segments, ends } = writeLog(segmentStart(first), small)
    await store(segments)
    await record(ends[3]!)
    await record(ends[1]!)
    repository = directoryRepository(root)
    await record(ends[2]!)
    expect(await repository.findRecordedEnd(id, epoch)).toMatchObject({ lsn: ends[3] })
    await record(ends[4]!)
    expect(await tail()).toEqual({ end: ends[4], newestCommit: 2_000n })
  })

  test('may be in the middle of a record, which a power failure of the source leaves', async () => {
    const { segments, ends } = writeLog(segmentStart(first), small)
    segments[0]!.fill(0, Number(ends[3]! - from) + 100)
    await store(segments)
    await record(ends[3]! + 100n)
    expect(await tail()).toEqual({ end: ends[3], newestCommit: 2_000n })
  })

  test.each([
    ['in the data of a record', 100],
    ['in the length of a record', 0],
    ['in the checksum of a record', 20],
    ['in the reference to the record before it', 9],
  ])('is damaged by a changed bit %s', async (_where, inside) => {
    const { segments, ends } = writeLog(segmentStart(first), small)
    await store(segments)
    await record(ends[1]!)
    await record(ends[4]!)
    flip(`${archive()}/${name(0)}${lastName}`, Number(ends[3]! - from) + inside)
    expect(await tail()).toMatchObject({
      end: ends[3],
      newestCommit: 2_000n,
      damage: { position: ends[3], recorded: { lsn: ends[4], at }, reason: expect.stringContaining(name(0)) },
    })
  })

  test.each([
    ['the magic number', 0],
    ['the timeline', 4],
    ['the position', 8],
  ])('is damaged by a changed bit of %s of a page', async (_where, inside) => {
    const { segments, ends } = writeLog(segmentStart(first), small)
    await store(segments)
    await record(ends[1]!)
    await record(ends[4]!)
    flip(`${archive()}/${name(0)}${lastName}`, 8192 + inside)
    expect(await tail()).toMatchObject({ end: ends[1], damage: { position: ends[1], recorded: { lsn: ends[4] } } })
  })

  test('is damaged if the rest was replaced by zeros or the file is too short', async () => {
    const { segments, ends } = writeLog(segmentStart(first), small)
    await store(segments)
    await record(ends[1]!)
    await record(ends[4]!)
    const file = `${archive()}/${name(0)}${lastName}`
    const zeros = readFileSync(file).fill(0, Number(ends[2]! - from))
    writeFileSync(file, zeros)
    expect(await tail()).toMatchObject({ end: ends[2], damage: { position: ends[2] } })
    truncateSync(file, 8192)
    expect(await tail()).toBeUndefined()
  })

  test('is damaged if its last segment is missing', async () => {
    const { segments, ends } = writeLog(segmentStart(first), [
      commit(1n),
      filler(Number(segmentBytes) - 100_000),
      filler(160_000),
      commit(2n),
    ])
    await store(segments)
    await record(ends[3]!)
    rmSync(`${archive()}/${name(1)}${lastName}`)
    expect(await tail()).toMatchObject({
      end: ends[1],
      damage: { position: ends[1], reason: `WAL segment ${name(1)} is missing` },
    })
  })

  test('is damaged if the segment of a sibling with equal positions took its place', async () => {
    const own = writeLog(segmentStart(first), [commit(1n), filler(500, 1), commit(2n)])
    const other = writeLog(segmentStart(first), [commit(1n), filler(500, 2), commit(2n)])
    expect(other.ends).toEqual(own.ends)
    await store(own.segments)
    await record(own.ends[0]!)
    await record(own.ends[2]!)
    await store(other.segments)
    // Its own records before the first difference are known to be right.
    expect(await tail()).toMatchObject({ end: own.ends[0], damage: { position: own.ends[0] } })
  })

  test('is unknown if the record of it is damaged or belongs to another cluster', async () => {
    const { segments, ends } = writeLog(segmentStart(first), small)
    await store(segments)
    await record(ends[4]!)
    const file = `${root}/${id}/archive/${epoch}.end`
    const text = readFileSync(file, 'utf8')
    writeFileSync(file, text.replace('timeline', 'timelime'))
    expect(await tail()).toMatchObject({
      end: ends[4],
      damage: { recorded: undefined, reason: /its checksum is wrong/ },
    })
    const sibling = newId()
    await store(segments, sibling)
    writeFileSync(`${root}/${sibling}/archive/${epoch}.end`, text)
    expect(await repository.archiveTail(sibling, epoch, 1, from)).toMatchObject({
      damage: { reason: expect.stringContaining(`belongs to epoch 1 of cluster ${id}`) },
    })
  })

  test('that is missing in the archive when it is recorded is damage', async () => {
    const { segments, ends } = writeLog(segmentStart(first), small)
    await store(segments)
    await repository.recordEnd(id, epoch, { timeline: 1, lsn: ends[4]! + 1000n, at, isMissing: true })
    expect(await tail()).toMatchObject({ end: ends[4], damage: { recorded: { lsn: ends[4]! + 1000n } } })
  })

  test('is inferred in a repository of an older version', async () => {
    const { segments, ends } = writeLog(segmentStart(first), small)
    await store(segments)
    flip(`${archive()}/${name(0)}${lastName}`, Number(ends[3]! - from) + 100)
    expect(await tail()).toEqual({ end: ends[3], newestCommit: 2_000n })
  })

  test('does not hide damage that a new process finds', async () => {
    const { segments, ends } = writeLog(segmentStart(first), small)
    await store(segments)
    await record(ends[2]!)
    flip(`${archive()}/${name(0)}${lastName}`, Number(ends[1]! - from) + 100)
    repository = directoryRepository(root)
    await record(ends[4]!)
    expect(await tail()).toMatchObject({ damage: { recorded: { lsn: ends[4] } } })
    renameSync(`${archive()}/${name(0)}${lastName}`, `${archive()}/${name(0)}`)
    expect((await repository.sealSegments(id, epoch, 1, from + segmentBytes)).count).toBe(1)
    expect(await repository.findAlteredSegment(id, epoch, 1, from)).toBe(from)
  })
})

describe('complete segments', () => {
  const long = () =>
    writeLog(segmentStart(first), [
      commit(1n),
      ...Array.from({ length: 3 }, () => filler(Number(segmentBytes) - 100)),
      commit(2n),
    ])

  async function storeSealed() {
    const log = long()
    await store(log.segments)
    while ((await repository.sealSegments(id, epoch, 1, log.ends.at(-1)!)).count > 0);
    await record(log.ends.at(-1)!)
    return log
  }

  const plan = (end: bigint) => repository.planWal([{ clusterId: id, epoch, timeline: 1, end: formatLsn(end) }], from)

  test('are planned with their recorded digests, and the last one with that of its first bytes', async () => {
    const { ends, segments } = await storeSealed()
    const planned = await plan(ends.at(-1)!)
    expect(planned.map(({ seal }) => seal?.bytes)).toEqual([
      ...segments.slice(1).map(() => Number(segmentBytes)),
      Number(ends.at(-1)! % segmentBytes),
    ])
    expect(new Set(planned.map(({ seal }) => seal?.sha256)).size).toBe(segments.length)
    expect(await repository.findAlteredSegment(id, epoch, 1, from)).toBeUndefined()
  })

  test('are found if they were changed or exchanged', async () => {
    await storeSealed()
    flip(`${archive()}/${name(1)}`, 5000)
    expect(await repository.findAlteredSegment(id, epoch, 1, from)).toBe(from + segmentBytes)
    expect(await repository.archiveTail(id, epoch, 1, from, from + segmentBytes)).toMatchObject({
      end: writeLog(segmentStart(first), [commit(1n)]).ends[0],
    })
  })

  test('are not sealed again by a new process, and lose their seals with retention', async () => {
    const { ends } = await storeSealed()
    repository = directoryRepository(root)
    expect((await repository.sealSegments(id, epoch, 1, ends.at(-1)!)).count).toBe(0)
    await repository.removeWalBefore(id, epoch, from + segmentBytes)
    const seals = readFileSync(`${root}/${id}/archive/${epoch}.seals`, 'utf8')
    expect(seals).not.toContain(name(0))
    expect(seals).toContain(name(1))
  })

  test('are listed for a scrub, some at a time', async () => {
    const { ends } = await storeSealed()
    const list = async (start: bigint, limit: number) => {
      const range = { from: start, to: ends.at(-1)! }
      return (await repository.listSealed(id, epoch, 1, range, limit)).files.map((file) => file.name)
    }
    expect(await list(from + 100n, 2)).toEqual([name(0), name(1)])
    expect(await list(from + 2n * segmentBytes, 2)).toEqual([name(2)])
    expect(await list(from + 3n * segmentBytes, 2)).toEqual([])
  })

  test('close a hole only if all of them are there and as they were recorded', async () => {
    await storeSealed()
    const hole = { timeline: 1, from, to: from + 2n * segmentBytes }
    const isIntact = () => repository.isIntact(id, epoch, hole)
    expect(await isIntact()).toBe(true)
    renameSync(`${archive()}/${name(1)}`, `${archive()}/aside`)
    expect(await isIntact()).toBe(false)
    cpSync(`${archive()}/aside`, `${archive()}/${name(1)}`)
    expect(await isIntact()).toBe(true)
    flip(`${archive()}/${name(1)}`, 7_000)
    expect(await isIntact()).toBe(false)
  })

  test('are refused with the seals of another cluster', async () => {
    const { ends, segments } = await storeSealed()
    const sibling = id
    id = newId()
    await store(segments)
    cpSync(`${root}/${sibling}/archive/${epoch}.seals`, `${root}/${id}/archive/${epoch}.seals`)
    await expect(plan(ends.at(-1)!)).rejects.toThrow(`belong to epoch 1 of cluster ${sibling}`)
    const cut = repository.findCut(id, epoch, 1, 0n, { from, to: ends.at(-1)! })
    await expect(cut).rejects.toThrow(UnusableArchiveError)
  })

  test('are sealed one after another as the log grows, also before they are renamed', async () => {
    const { segments, ends } = long()
    await store(segments.slice(0, 2))
    await repository.sealSegments(id, epoch, 1, from + segmentBytes)
    for (const n of [1, 2]) {
      rmSync(archive(), { recursive: true })
      await store(segments.slice(0, n + 1))
      const { count } = await repository.sealSegments(id, epoch, 1, from + BigInt(n + 1) * segmentBytes)
      // The last one that was written to before the first look is verified, as soon as its last record is complete.
      expect(count).toBe(n)
    }
    rmSync(archive(), { recursive: true })
    await store(segments)
    // The last record of each segment continues in the next one.
    await repository.sealSegments(id, epoch, 1, ends.at(-1)!)
    expect((await plan(ends.at(-1)!)).map(({ seal }) => seal !== undefined)).toEqual([true, true, true, false])
    expect(await repository.findAlteredSegment(id, epoch, 1, from)).toBeUndefined()
  })

  test('are refused if the end of another cluster is recorded', async () => {
    const { ends, segments } = await storeSealed()
    const sibling = id
    id = newId()
    await store(segments)
    cpSync(`${root}/${sibling}/archive/${epoch}.end`, `${root}/${id}/archive/${epoch}.end`)
    await expect(plan(ends.at(-1)!)).rejects.toThrow(`it belongs to epoch 1 of cluster ${sibling}`)
  })

  test('are removed together with what is recorded about them', async () => {
    await storeSealed()
    await repository.removeArchive(id, epoch)
    expect(await repository.findRecordedEnd(id, epoch)).toBeUndefined()
    expect(() => readFileSync(`${root}/${id}/archive/${epoch}.seals`)).toThrow('ENOENT')
  })
})

describe('segments that were completed while nobody watched', () => {
  const megabytes = () =>
    writeLog(segmentStart(first), [...Array.from({ length: 40 }, () => filler(1024 ** 2)), commit(2n)])

  test('are verified before they get a digest, and a damaged one is never blessed', async () => {
    const { segments, ends } = megabytes()
    await store(segments)
    flip(`${archive()}/${name(1)}`, 5_000_000)
    const { count, damaged } = await repository.sealSegments(id, epoch, 1, ends.at(-1)!)
    expect(count).toBe(2)
    expect(damaged).toMatchObject([{ file: name(1), kind: 'damaged' }])
    expect(damaged[0]!.message).toContain(`WAL segment ${name(1)} of ${id} is damaged at 0/`)
    expect(await repository.findAlteredSegment(id, epoch, 1, from)).toBe(from + segmentBytes)
    // A process that was killed before the damage was recorded elsewhere is followed by one that says so again.
    repository = directoryRepository(root)
    expect(await repository.sealSegments(id, epoch, 1, ends.at(-1)!)).toMatchObject({
      count: 0,
      damaged: [{ file: name(1) }],
    })
    expect((await repository.sealSegments(id, epoch, 1, ends.at(-1)!)).damaged).toEqual([])
  })

  test('are not blamed for what happened to the sealed segment before them', async () => {
    const { segments, ends } = megabytes()
    await store(segments)
    await repository.sealSegments(id, epoch, 1, from + segmentBytes + 5_000_000n)
    // The record at the end of the first segment goes on in the second one.
    flip(`${archive()}/${name(0)}`, Number(segmentBytes) - 1_000)
    repository = directoryRepository(root)
    expect(await repository.sealSegments(id, epoch, 1, ends.at(-1)!)).toEqual({ count: 1, damaged: [] })
    expect(await repository.findAlteredSegment(id, epoch, 1, from)).toBe(from)
  })

  test('are sealed if they are intact', async () => {
    const { segments, ends } = megabytes()
    await store(segments)
    expect(await repository.sealSegments(id, epoch, 1, ends.at(-1)!)).toEqual({ count: 2, damaged: [] })
    expect(await repository.findAlteredSegment(id, epoch, 1, from)).toBeUndefined()
  })
})

describe('a backup', () => {
  const label = '20261115-100203F'

  async function makeBackup(text: string): Promise<string> {
    const cluster = newId()
    const staged = await repository.stageBackup(cluster, label)
    mkdirSync(`${staged}/data`)
    writeFileSync(`${staged}/data/backup_manifest`, text)
    await repository.commitBackup(describedBackup({ clusterId: cluster, label }))
    return cluster
  }

  test('is known by its manifest, and is not that of a sibling', async () => {
    const [own, sibling] = [await makeBackup('one'), await makeBackup('two')]
    expect(await repository.findForeignBackup(own, label)).toBeUndefined()
    rmSync(repository.backupData(own, label), { recursive: true })
    cpSync(repository.backupData(sibling, label), repository.backupData(own, label), { recursive: true })
    expect(await repository.findForeignBackup(own, label)).toContain('changed or belongs to another cluster')
    rmSync(`${root}/${own}/backups/${label}`, { recursive: true })
    cpSync(`${root}/${sibling}/backups/${label}`, `${root}/${own}/backups/${label}`, { recursive: true })
    expect(await repository.findForeignBackup(own, label)).toContain(`that of cluster ${sibling}`)
    expect(await repository.listBackups(own)).toEqual([])
    expect(await repository.listUnusableBackups(own)).toEqual([expect.stringContaining(sibling)])
  })

  test('of an older version has no digest of its manifest and is accepted', async () => {
    const own = await makeBackup('one')
    const file = `${root}/${own}/backups/${label}/backup.json`
    writeFileSync(file, JSON.stringify(describedBackup({ clusterId: own, label })))
    expect(await repository.findForeignBackup(own, label)).toBeUndefined()
  })
})
