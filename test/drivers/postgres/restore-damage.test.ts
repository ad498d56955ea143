// What a copy says about files that it cannot read. Only damage of the files themselves may be recorded.
import { spawnSync } from 'node:child_process'
import {
  closeSync,
  existsSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { clusterPaths } from '../../../src/drivers/postgres/paths.ts'
import type { CopyState, RestoreSpec } from '../../../src/drivers/postgres/restore/driver.ts'
import { restoreDriver } from '../../../src/drivers/postgres/restore/restore.ts'
import type { Repository } from '../../../src/drivers/repository/driver.ts'
import { newId } from '../../../src/model/ids.ts'
import { parseLsn, segmentBytes } from '../../../src/model/postgres/wal.ts'
import type { TestCluster } from '../../support/cluster.ts'
import {
  type Backup,
  commit,
  copyInRepository,
  cut,
  epoch,
  openRestoreBench,
  ownPiece,
  type RestoreBench,
  startSource,
  takeBackup,
  untilCopied,
} from '../../support/restore.ts'
import { type BrokenFile, breakBlock } from '../../support/storage/unreadable-block.ts'
import { until } from '../../support/until.ts'

let bench: RestoreBench
let source: TestCluster
let backup: Backup
let end: string
const mounts: string[] = []
const broken: BrokenFile[] = []

beforeAll(async () => {
  bench = await openRestoreBench()
  source = await startSource(bench, '17')
  backup = await takeBackup(bench, source, 'first')
  await bench.postgres.query(source.id, 'fly-db', 'select pg_switch_wal()')
  const blocks = `(select string_agg(md5(n::text), '') from generate_series(1, 1000) n)`
  await bench.postgres.query(source.id, 'fly-db', `select pg_logical_emit_message(false, 'blocks', ${blocks})`)
  await commit(bench, source.id, 1)
  end = await cut(bench, source.id)
}, 120_000)

afterEach(async () => {
  await bench.removeTargets()
  for (const path of mounts.splice(0)) spawnSync('umount', [path])
  for (const file of broken.splice(0)) file.remove()
})
afterAll(() => bench?.remove(), 120_000)

const segment = '000000010000000000000002'

/** A copy of the source's part of the repository, to damage. */
function copyOfSource() {
  const id = newId()
  const path = `${bench.root}/${id}`
  copyInRepository(bench, source.id, id)
  return { id, path, data: `${path}/backups/first/data`, archive: `${path}/archive/${epoch}` }
}

async function copyFrom(id: string, change: Partial<RestoreSpec> = {}, restores = bench.restores): Promise<CopyState> {
  const target = await bench.newTarget(source)
  const { toolchain, uid } = target.spec
  const spec: RestoreSpec = {
    toolchain,
    uid,
    backup: { ...backup, clusterId: id },
    pieces: [ownPiece(id, end)],
    timeline: 1,
    ...change,
  }
  await restores.startCopy(target.id, spec)
  const seen = await untilCopied(restores, target.id)
  expect(existsSync(clusterPaths(bench.home, target.id).data)).toBe(seen.is === 'done')
  return seen
}

/** Reading this file fails with EIO, as on a broken disk; users without rights on this process cannot open it. */
function breakFile(path: string): void {
  const { status, stderr } = spawnSync('mount', ['--bind', `/proc/${process.pid}/mem`, path])
  if (status !== 0) throw new Error(String(stderr))
  mounts.push(path)
}

function breakMiddle(path: string, limit?: number): void {
  const file = breakBlock(path, limit)
  broken.push(file)
  const descriptor = openSync(path, 'r')
  try {
    const bytes = Buffer.alloc(10)
    expect(readSync(descriptor, bytes, 0, 10, 0)).toBe(10)
    expect(() => readSync(descriptor, bytes, 0, 10, file.offset)).toThrow('EIO')
  } finally {
    closeSync(descriptor)
  }
}

describe('A backup is damaged', () => {
  test.each<[string, (copy: ReturnType<typeof copyOfSource>) => void, string | RegExp]>([
    [
      'without its directory',
      ({ path }) => rmSync(`${path}/backups/first`, { recursive: true }),
      /directory in the repository is gone/,
    ],
    ['without its data', ({ data }) => rmSync(data, { recursive: true }), /directory in the repository is gone/],
    [
      'with a link in place of its data, even to an intact copy',
      ({ data }) => {
        renameSync(data, `${data}.away`)
        symlinkSync(`${data}.away`, data)
      },
      /^a symbolic link is in place of its directory/,
    ],
    [
      'with a link in place of its directory',
      ({ path }) => {
        renameSync(`${path}/backups/first`, `${path}/backups/.away`)
        symlinkSync('.away', `${path}/backups/first`)
      },
      /^a symbolic link is in place of its directory/,
    ],
    [
      'with a link in place of a file, even to the same content',
      ({ data }) => {
        renameSync(`${data}/base/1/1259`, `${data}/../1259`)
        symlinkSync(`${data}/../1259`, `${data}/base/1/1259`)
      },
      '"base/1/1259" is a symbolic link instead of a file',
    ],
    [
      'with a pipe in place of a file',
      ({ data }) => {
        rmSync(`${data}/base/1/1259`)
        spawnSync('mkfifo', [`${data}/base/1/1259`])
      },
      '"base/1/1259" is a pipe instead of a file',
    ],
    [
      'without a file',
      ({ data }) => rmSync(`${data}/global/pg_control`),
      /"global\/pg_control" is present in the manifest/,
    ],
    ['without its manifest', ({ data }) => rmSync(`${data}/backup_manifest`), /its manifest is missing/],
    ['with a short file', ({ data }) => truncateSync(`${data}/base/1/1259`, 100), /"base\/1\/1259" has size 100/],
  ])('%s', async (_name, damage, expected) => {
    const copy = copyOfSource()
    damage(copy)
    const pieces = [ownPiece(source.id, end)]
    for (const trusted of [false, true]) {
      const seen = await copyFrom(copy.id, { pieces, trusted })
      expect(seen).toMatchObject({ is: 'failed', damage: expect.stringMatching(expected) })
      expect((seen as { reason: string }).reason).toMatch(/^backup first is damaged: /)
    }
  })

  test.runIf(isRoot())('with a file that cannot be read, also if a scrub has just found it intact', async () => {
    const copy = copyOfSource()
    breakFile(`${copy.data}/base/1/1259`)
    expect(readError(`${copy.data}/base/1/1259`)).toBe('EIO')
    for (const trusted of [false, true]) {
      expect(await copyFrom(copy.id, { pieces: [ownPiece(source.id, end)], trusted })).toMatchObject({
        is: 'failed',
        damage: expect.stringContaining('base/1/1259'),
      })
    }
  })

  test.runIf(isRoot())('with a block in the middle of a file that cannot be read', async () => {
    const copy = copyOfSource()
    breakMiddle(`${copy.data}/base/1/1259`)
    for (const trusted of [false, true]) {
      expect(await copyFrom(copy.id, { pieces: [ownPiece(source.id, end)], trusted })).toMatchObject({
        is: 'failed',
        damage: expect.stringContaining('base/1/1259'),
      })
    }
  })

  test('is found by a scrub too', async () => {
    const copy = copyOfSource()
    renameSync(`${copy.data}/base/1/1259`, `${copy.data}/../1259`)
    symlinkSync(`${copy.data}/../1259`, `${copy.data}/base/1/1259`)
    await bench.backups.startScrub(copy.id, 'first', source.spec.toolchain)
    try {
      await until(async () => (await bench.backups.inspectScrub(copy.id)).is !== 'running')
      expect(await bench.backups.inspectScrub(copy.id)).toMatchObject({
        is: 'failed',
        reason: expect.stringContaining('"base/1/1259" is not a file'),
      })
    } finally {
      await bench.backups.removeScrub(copy.id)
    }
  })
})

function readError(path: string): string | undefined {
  try {
    readFileSync(path)
    return undefined
  } catch (error) {
    return (error as NodeJS.ErrnoException).code
  }
}

describe('WAL is damaged', () => {
  test.each<[string, (archive: string) => void, 'missing' | 'damaged']>([
    ['without a segment', (archive) => rmSync(`${archive}/${segment}`), 'missing'],
    ['with a short segment', (archive) => truncateSync(`${archive}/${segment}`, 1024 ** 2), 'damaged'],
    [
      'with a link in place of a segment',
      (archive) => {
        renameSync(`${archive}/${segment}`, `${archive}/../elsewhere`)
        symlinkSync('../elsewhere', `${archive}/${segment}`)
      },
      'missing',
    ],
    [
      'with zeros in place of a segment',
      (archive) => writeFileSync(`${archive}/${segment}`, Buffer.alloc(16 * 1024 ** 2)),
      'damaged',
    ],
  ])('%s', async (_name, damage, kind) => {
    const copy = copyOfSource()
    damage(copy.archive)
    const seen = await copyFrom(copy.id)
    expect(seen).toMatchObject({
      is: 'failed',
      reason: expect.stringContaining(segment),
      hole: { timeline: 1, fromLsn: '0/2000000', toLsn: '0/3000000', kind },
    })
    expect(seen).not.toHaveProperty('damage')
  })

  test.runIf(isRoot())('with a segment that cannot be read', async () => {
    const copy = copyOfSource()
    // Its header was read, but not the rest.
    const planWal: Repository['planWal'] = async (pieces, from) => {
      const planned = await bench.repository.planWal(pieces, from)
      breakFile(`${copy.archive}/${segment}`)
      return planned
    }
    const restores = restoreDriver({ ...bench, repository: { ...bench.repository, planWal } })
    const hole = { timeline: 1, fromLsn: '0/2000000', toLsn: '0/3000000', kind: 'damaged' }
    expect(await copyFrom(copy.id, {}, restores)).toMatchObject({
      is: 'failed',
      reason: expect.stringMatching(/^WAL file \w+ cannot be copied: (Permission denied|Input\/output error)$/),
      hole,
    })
    // The size of the broken file is 0.
    expect(await copyFrom(copy.id)).toMatchObject({ is: 'failed', hole })
  })
})

test.runIf(isRoot())('WAL is damaged with a block in the middle of a segment that cannot be read', async () => {
  const copy = copyOfSource()
  const last = '000000010000000000000003'
  const used = Number(parseLsn(end) % segmentBytes)
  breakMiddle(`${copy.archive}/${last}.partial`, used)
  expect(await copyFrom(copy.id)).toMatchObject({
    is: 'failed',
    reason: expect.stringContaining(last),
    hole: { timeline: 1, fromLsn: '0/3000000', toLsn: '0/4000000', kind: 'damaged' },
  })
})

describe('Nothing is damaged', () => {
  test.each<[string, (path: string) => string]>([
    ['if the repository has no backups at all', (path) => `${path}/backups`],
    ['if the repository has no archive at all', (path) => `${path}/archive/${epoch}`],
  ])('%s, as when it is not mounted', async (_name, lost) => {
    const copy = copyOfSource()
    rmSync(lost(copy.path), { recursive: true })
    const seen = await copyFrom(copy.id)
    expect(seen).toEqual({ is: 'failed', reason: expect.stringContaining('is it mounted?') })
  })

  test('if the copy was made', async () => {
    expect(await copyFrom(copyOfSource().id)).toEqual({ is: 'done' })
  })
})
