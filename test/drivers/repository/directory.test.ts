import { existsSync, mkdirSync, readdirSync, renameSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { afterAll, beforeEach, expect, test } from 'vitest'
import { directoryRepository } from '../../../src/drivers/repository/directory.ts'
import type { BackupDescription, Repository } from '../../../src/drivers/repository/driver.ts'
import { newId } from '../../../src/model/ids.ts'
import {
  historyName,
  parseLsn,
  segmentBytes,
  segmentName,
  segmentStart,
  type WalPiece,
} from '../../../src/model/postgres/wal.ts'
import { describedBackup } from '../../support/backup-description.ts'
import { removeTemporaryHome, startProgram, temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const directory = temporaryDirectory()
const root = `${directory}/repository`
const repository = directoryRepository(root)
const label = '20261115-100203F'
let id = newId()

beforeEach(() => {
  id = newId()
})

afterAll(() => removeTemporaryHome(directory))

function describe(change: Partial<BackupDescription> = {}): BackupDescription {
  return describedBackup({ clusterId: id, label, ...change })
}

async function stage(name = label): Promise<string> {
  const staged = await repository.stageBackup(id, name)
  mkdirSync(`${staged}/data`)
  writeFileSync(`${staged}/data/PG_VERSION`, '17\n')
  return staged
}

test('shows a backup only after it is committed', async () => {
  const staged = await stage()
  expect(staged).toBe(repository.stagedBackup(id, label))
  expect(await repository.findBackup(id, label)).toBeUndefined()
  expect(await repository.listBackups(id)).toEqual([])
  await repository.commitBackup(describe())
  expect(await repository.findBackup(id, label)).toEqual(describe())
  expect(await repository.listBackups(id)).toEqual([describe()])
  expect(readdirSync(repository.backupData(id, label))).toEqual(['PG_VERSION'])
  expect(existsSync(staged)).toBe(false)
  expect(await repository.listClusters()).toContain(id)
})

test('keeps the last description of a cluster until the cluster is removed', async () => {
  expect(await repository.findDescription(id)).toBeUndefined()
  await repository.describeCluster(id, { drillQuery: null, pinned: [label] })
  await repository.describeCluster(id, { drillQuery: 'select 1', pinned: [] })
  expect(await repository.findDescription(id)).toEqual({
    drillQuery: 'select 1',
    retentionDays: null,
    maintenanceWindow: null,
    pinned: [],
  })
  expect(readdirSync(`${root}/${id}`)).toEqual(['cluster.json'])
  await repository.removeCluster(id)
  expect(await repository.findDescription(id)).toBeUndefined()
})

test('accepts a repeated commit, but never another backup under the same label', async () => {
  await stage()
  await repository.commitBackup(describe())
  await repository.commitBackup(describe())
  await stage()
  await repository.commitBackup(describe())
  expect(existsSync(repository.stagedBackup(id, label))).toBe(false)
  await stage()
  await expect(repository.commitBackup(describe({ sizeBytes: 6 }))).rejects.toThrow('exists already')
  expect(await repository.findBackup(id, label)).toEqual(describe())
})

test('starts with an empty directory after an attempt that died before its commit', async () => {
  await stage()
  const again = await repository.stageBackup(id, label)
  expect(readdirSync(again)).toEqual([])
  await expect(repository.commitBackup(describe())).rejects.toThrow('is not staged')
  await repository.discardStaged(id, label)
  await repository.discardStaged(id, label)
  expect(readdirSync(`${root}/${id}/backups`)).toEqual([])
})

test('contains only complete backups after a process is killed during commits', async () => {
  const program = startProgram(`
    import { mkdirSync, writeFileSync } from 'node:fs'
    import { directoryRepository } from 'drivers/repository/directory.ts'
    const repository = directoryRepository(${JSON.stringify(root)})
    const description = ${JSON.stringify(describe())}
    for (let n = 10; ; n++) {
      const label = '20261115-1002' + n + 'F'
      const staged = await repository.stageBackup(description.clusterId, label)
      mkdirSync(staged + '/data')
      for (let file = 0; file < 20; file++) writeFileSync(staged + '/data/' + file, 'x'.repeat(1000))
      await repository.commitBackup({ ...description, label })
      console.log(label)
    }
  `)
  let printed = ''
  program.stdout.on('data', (chunk) => {
    printed += chunk
  })
  await until(() => printed.split('\n').length > 3)
  const ended = new Promise((resolve) => program.once('exit', resolve))
  program.kill('SIGKILL')
  await ended
  const listed = await repository.listBackups(id)
  expect(listed.map((backup) => backup.label)).toEqual(expect.arrayContaining(printed.trim().split('\n')))
  for (const backup of listed) {
    expect(backup).toEqual(describe({ label: backup.label }))
    expect(readdirSync(repository.backupData(id, backup.label))).toHaveLength(20)
  }
})

test('is accessible only to the platform', async () => {
  await stage()
  await repository.commitBackup(describe())
  const archive = await repository.ensureArchive(id, 1)
  for (const path of [root, `${root}/${id}`, archive, `${root}/${id}/backups`, `${root}/${id}/backups/${label}`]) {
    expect(statSync(path).mode & 0o777).toBe(0o700)
    expect(statSync(path).uid).toBe(process.getuid!())
  }
})

test('rejects names that could leave their directory', async () => {
  const calls: ((name: string) => unknown)[] = [
    (name) => repository.ensureArchive(name, 1),
    (name) => repository.listArchive(name, 1),
    (name) => repository.removeCluster(name),
    (name) => repository.stageBackup(id, name),
    async (name) => repository.stagedBackup(id, name),
    async (name) => repository.backupData(id, name),
    (name) => repository.removeBackup(id, name),
    (name) => repository.commitBackup(describe({ label: name })),
    (name) => repository.commitBackup(describe({ clusterId: name })),
    (name) => repository.planWal([{ clusterId: name, epoch: 1, timeline: 1, end: '0/3000120' }], 1n),
    (name) => repository.removeArchive(id, name as unknown as number),
  ]
  for (const name of ['', '.', '..', '../x', 'a/b', '/etc', '.trash', 'x\0y', 'x\n', `${id}/../x`]) {
    for (const call of calls) await expect((async () => call(name))()).rejects.toThrow(/^not (the|an) /)
  }
})

test('removes backups, archives and clusters at once and empties the trash', async () => {
  await stage()
  await repository.commitBackup(describe())
  await repository.ensureArchive(id, 1)
  await repository.removeBackup(id, label)
  await repository.removeBackup(id, label)
  expect(await repository.listBackups(id)).toEqual([])
  await repository.removeArchive(id, 1)
  expect(await repository.listArchive(id, 1)).toEqual([])
  await repository.removeCluster(id)
  expect(await repository.listClusters()).not.toContain(id)
  await until(() => readdirSync(`${root}/.trash`).length === 0)
  expect(await repository.freeBytes()).toBeGreaterThan(0)
})

const systemId = 7_654_321n

interface Segment {
  timeline?: number
  number: number
  partial?: boolean
  /** The number of pages with content; the rest is zeros. */
  pages?: number
  system?: bigint
}

/** Builds a segment with only what the repository checks: the headers of its pages. */
async function writeSegment(clusterId: string, segment: Segment): Promise<string> {
  const { timeline = 1, number, partial = false, pages = 2048, system = systemId } = segment
  const archive = await repository.ensureArchive(clusterId, 1)
  const path = `${archive}/${segmentName(timeline, BigInt(number))}${partial ? '.partial' : ''}`
  await using file = await open(path, 'w')
  await file.truncate(Number(segmentBytes))
  for (const page of pages > 1 ? [0, pages - 1] : [0]) {
    const header = Buffer.alloc(40)
    header.writeUInt16LE(0xd116, 0)
    header.writeUInt32LE(timeline, 4)
    header.writeBigUInt64LE(segmentStart(BigInt(number)) + BigInt(page) * 8192n, 8)
    if (page === 0) header.writeBigUInt64LE(system, 24)
    await file.write(header, 0, header.length, page * 8192)
  }
  return path
}

function piece(end: string, change: Partial<WalPiece> = {}): WalPiece {
  return { clusterId: id, epoch: 1, timeline: 1, end, ...change }
}

async function plan(pieces: WalPiece[], from: string, of: Repository = repository): Promise<[string, number][]> {
  return (await of.planWal(pieces, parseLsn(from))).map(({ name, bytes }) => [name, bytes])
}

test('finds the end of the gapless part of the archive', async () => {
  const end = (timeline: number, from: string) => repository.archiveEnd(id, 1, timeline, parseLsn(from))
  expect(await end(1, '0/3000028')).toBeUndefined()
  for (const number of [3, 4, 6]) await writeSegment(id, { number })
  await writeSegment(id, { number: 7, partial: true })
  await writeSegment(id, { number: 5, timeline: 2 })
  expect(await end(1, '0/2FFFFFF')).toBeUndefined()
  expect(await end(1, '0/3000028')).toBe(parseLsn('0/5000000'))
  expect(await end(1, '0/6000000')).toBe(parseLsn('0/8000000'))
  expect(await end(2, '0/5000000')).toBe(parseLsn('0/6000000'))
  writeFileSync(`${await repository.ensureArchive(id, 1)}/${segmentName(1, 8n)}.partial`, '')
  expect(await end(1, '0/6000000')).toBe(parseLsn('0/8000000'))
})

test('removes only the segments that end before a position', async () => {
  for (const number of [3, 4, 5]) await writeSegment(id, { number })
  await writeSegment(id, { number: 6, partial: true })
  const archive = await repository.ensureArchive(id, 1)
  writeFileSync(`${archive}/${historyName(2)}`, '1\t0/4000000\tx\n')
  expect(await repository.removeWalBefore(id, 1, parseLsn('0/5000000'))).toBe(2)
  expect(await repository.removeWalBefore(id, 1, parseLsn('0/5FFFFFF'))).toBe(0)
  expect((await repository.listArchive(id, 1)).map((file) => file.name)).toEqual([
    segmentName(1, 5n),
    `${segmentName(1, 6n)}.partial`,
    historyName(2),
  ])
})

test('leaves the segments in kept ranges', async () => {
  for (const number of [3, 4, 5, 6, 7]) await writeSegment(id, { number })
  const kept = [{ from: parseLsn('0/4000028'), to: parseLsn('0/5000100') }]
  expect(await repository.removeWalBefore(id, 1, parseLsn('0/7000000'), kept)).toBe(2)
  const names = (await repository.listArchive(id, 1)).map((file) => file.name)
  expect(names).toEqual([4n, 5n, 7n].map((number) => segmentName(1, number)))
})

test('plans every segment up to the end, and only part of the last one', async () => {
  for (const number of [254, 255, 256]) await writeSegment(id, { number })
  const last = '00000001000000010000000'
  expect(await plan([piece('1/100')], '0/FE000028')).toEqual([
    ['0000000100000000000000FE', 16_777_216],
    ['0000000100000000000000FF', 16_777_216],
    [`${last}0`, 256],
  ])
  // A position at a segment boundary belongs to the segment before it.
  expect(await plan([piece('1/0')], '0/FF000028')).toEqual([['0000000100000000000000FF', 16_777_216]])
})

test('plans a partial segment under its final name', async () => {
  await writeSegment(id, { number: 3 })
  const path = await writeSegment(id, { number: 4, partial: true, pages: 3 })
  const planned = await repository.planWal([piece('0/4005000')], parseLsn('0/3000028'))
  expect(planned.at(-1)).toEqual({ path, name: segmentName(1, 4n), bytes: 0x5000 })
  await expect(plan([piece('0/4006001')], '0/3000028')).rejects.toThrow(
    `${segmentName(1, 4n)} of ${id} ends before 0/4006001`,
  )
})

test('retries if a segment was completed after it was listed', async () => {
  const partial = await writeSegment(id, { number: 3, partial: true })
  const planned = repository.planWal([piece('0/4000000')], parseLsn('0/3000028'))
  // At this point the directory has been listed, but the files have not been opened.
  renameSync(partial, partial.replace('.partial', ''))
  expect(await planned).toEqual([
    { path: partial.replace('.partial', ''), name: segmentName(1, 3n), bytes: Number(segmentBytes) },
  ])
})

test('names the segment that is missing, truncated, damaged or foreign', async () => {
  for (const number of [3, 5]) await writeSegment(id, { number })
  const pieces = [piece('0/5000100')]
  const name = segmentName(1, 4n)
  await expect(plan(pieces, '0/3000028')).rejects.toThrow(`${name} of ${id} is missing`)
  await writeSegment(id, { number: 4, timeline: 2 })
  await expect(plan(pieces, '0/3000028')).rejects.toThrow(`${name} of ${id} is missing`)
  const path = await writeSegment(id, { number: 4 })
  expect(await plan(pieces, '0/3000028')).toHaveLength(3)
  truncateSync(path, 1_000_000)
  await expect(plan(pieces, '0/3000028')).rejects.toThrow(`${name} of ${id} has 1000000 bytes`)
  await writeSegment(id, { number: 4, system: 1n })
  await expect(plan(pieces, '0/3000028')).rejects.toThrow(`${name} of ${id} is damaged or belongs to another cluster`)
  renameSync(await writeSegment(id, { number: 9 }), path)
  await expect(plan(pieces, '0/3000028')).rejects.toThrow(`${name} of ${id} is damaged or belongs to another cluster`)
})

test('continues in the archive of a child where its timeline branched off', async () => {
  const child = newId()
  for (const number of [3, 4, 5, 6]) await writeSegment(id, { number })
  for (const number of [5, 6]) await writeSegment(child, { number, timeline: 2 })
  const pieces = [piece('0/6000100'), piece('0/6000100', { clusterId: child, timeline: 2 })]
  await expect(plan(pieces, '0/4000028')).rejects.toThrow(`${historyName(2)} of ${child} is missing`)
  const history = `${await repository.ensureArchive(child, 1)}/${historyName(2)}`
  writeFileSync(history, '1\t0/5000123\tno recovery target specified\n')
  expect(await plan(pieces, '0/4000028')).toEqual([
    [segmentName(1, 4n), 16_777_216],
    [segmentName(1, 5n), 0x123],
    [historyName(2), 41],
    [segmentName(2, 5n), 16_777_216],
    [segmentName(2, 6n), 0x100],
  ])
  writeFileSync(history, '1\t0/7000123\tno recovery target specified\n')
  await expect(plan(pieces, '0/4000028')).rejects.toThrow(`begins at 0/7000123, which the WAL of ${id} lacks`)
  writeFileSync(history, '3\t0/5000123\tno recovery target specified\n')
  await expect(plan(pieces, '0/4000028')).rejects.toThrow('does not follow timeline 1')
})
