import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { clusterPaths } from '../../src/drivers/postgres-paths.ts'
import { isRoot } from '../../src/drivers/process.ts'
import { killProcess, listProcesses, readEnvironment } from '../../src/drivers/process-list.ts'
import { type RestoreSpec, restoreDriver } from '../../src/drivers/restore.ts'
import { newId } from '../../src/model/ids.ts'
import { parseLsn } from '../../src/model/wal.ts'
import { ask, type TestCluster, untilReady } from '../support/cluster.ts'
import {
  type Backup,
  commit,
  cut,
  epoch,
  numbers,
  openRestoreBench,
  ownPiece,
  type RestoreBench,
  restoreInto,
  startArchive,
  startSource,
  type Target,
  takeBackup,
  untilCopied,
  untilRecovered,
} from '../support/restore.ts'
import { until } from '../support/until.ts'

let bench: RestoreBench

beforeAll(async () => {
  bench = await openRestoreBench()
})
afterAll(() => bench?.remove())

/** The time a number of microseconds later or earlier. */
function moved(time: string, micros: number): string {
  const at = BigInt(Date.parse(`${time.slice(0, 19)}Z`)) * 1000n + BigInt(time.slice(20, 26)) + BigInt(micros)
  const seconds = new Date(Number(at / 1000n)).toISOString().slice(0, 19).replace('T', ' ')
  return `${seconds}.${String(at % 1_000_000n).padStart(6, '0')}+00`
}

const longAfter = '2100-01-01 00:00:00.000000+00'

describe.each(['16', '17'] as const)('PostgreSQL %s', (major) => {
  let source: TestCluster
  let backup: Backup
  let end: string
  const at: Record<number, string> = {}

  beforeAll(async () => {
    source = await startSource(bench, major, { max_prepared_transactions: '5' })
    await commit(bench, source.id, 1)
    backup = await takeBackup(bench, source, 'first')
    for (const n of [2, 3, 4]) at[n] = await commit(bench, source.id, n)
    await bench.postgres.query(source.id, 'fly-db', 'select pg_switch_wal()')
    for (const n of [5, 6]) at[n] = await commit(bench, source.id, n, `needle ${n}`)
    end = await cut(bench, source.id)
    await commit(bench, source.id, 7)
  })

  async function newTarget(): Promise<TestCluster> {
    const cluster = await bench.newCluster(major)
    return { ...cluster, spec: { ...cluster.spec, settings: source.spec.settings } }
  }

  function specFor(target: TestCluster, goal: Target, change: Partial<RestoreSpec> = {}): RestoreSpec {
    const { toolchain, uid } = target.spec
    return { toolchain, uid, backup, pieces: [ownPiece(source.id, end)], target: goal, timeline: 1, ...change }
  }

  async function restore(goal: Target, change: Partial<RestoreSpec> = {}) {
    const target = await newTarget()
    return restoreInto(bench, target, specFor(target, goal, change))
  }

  /** The source's part of the repository under another name, to be damaged. */
  function copyOfSource(): { id: string; path: string; change: Partial<RestoreSpec> } {
    const id = newId()
    const path = `${bench.root}/${id}`
    cpSync(`${bench.root}/${source.id}`, path, { recursive: true })
    return { id, path, change: { backup: { ...backup, clusterId: id }, pieces: [ownPiece(id, end)] } }
  }

  it.each([
    ['an exact commit time, which counts', () => at[4]!, [1, 2, 3, 4]],
    ['the microsecond before a commit', () => moved(at[4]!, -1), [1, 2, 3]],
    ['the microsecond after a commit', () => moved(at[4]!, 1), [1, 2, 3, 4]],
    ['a time with an offset', () => withOffset(at[3]!), [1, 2, 3]],
    ['the last commit before the cut', () => at[6]!, [1, 2, 3, 4, 5, 6]],
    ['the idle time after it, though the source went on', () => longAfter, [1, 2, 3, 4, 5, 6]],
  ])('restores to %s', async (_name, time, expected) => {
    const { id, restored } = await restore({ kind: 'time', time: time() })
    expect(restored).toMatchObject({ is: 'promoted', timeline: 2 })
    expect(await numbers(bench, id)).toEqual(expected)
  })

  function withOffset(time: string): string {
    return `${moved(time, 20_700_000_000).slice(0, 26)}+05:45`
  }

  it('restores to the end of a backup and nothing later', async () => {
    const { id, restored } = await restore({ kind: 'immediate' })
    expect(restored).toEqual({ is: 'promoted', timeline: 2, endLsn: backup.stopLsn })
    expect(await numbers(bench, id)).toEqual([1])
  })

  it('restores to the cut, with prepared transactions, and leaves no trace of the recovery', async () => {
    await bench.postgres.query(
      source.id,
      'fly-db',
      `begin; insert into public.number values (100); prepare transaction 'kept'`,
    )
    const target = await newTarget()
    const spec = specFor(target, { kind: 'end' }, { pieces: [ownPiece(source.id, await cut(bench, source.id))] })
    const { id } = await restoreInto(bench, target, spec)
    expect(await bench.postgres.query(id, 'fly-db', 'select gid from pg_prepared_xacts')).toEqual([{ gid: 'kept' }])
    await bench.postgres.query(id, 'fly-db', `commit prepared 'kept'`)
    expect(await numbers(bench, id)).toEqual([1, 2, 3, 4, 5, 6, 7, 100])
    await bench.postgres.query(source.id, 'fly-db', `rollback prepared 'kept'`)

    const { directory, data } = clusterPaths(bench.home, id)
    expect(readFileSync(`${data}/postgresql.auto.conf`, 'utf8')).not.toContain('=')
    expect(readdirSync(data)).not.toContain('recovery.signal')
    expect(readdirSync(data)).not.toContain('backup_manifest')
    expect(readdirSync(directory).filter((name) => name.includes('copy'))).toEqual([])
    expect(bench.supervisor.listServices().filter((name) => name.includes(id))).toEqual([`pg-${id}`])
    // A second time, as after a crash, it changes nothing that was set since.
    await bench.postgres.query(id, 'postgres', `alter system set work_mem = '5MB'`)
    await bench.restores.finish(id, spec)
    expect(readFileSync(`${data}/postgresql.auto.conf`, 'utf8')).toContain('5MB')
  })

  it('lets nobody in before it is finished, and then without a restart', async () => {
    const target = await newTarget()
    const spec = specFor(target, { kind: 'end' })
    await bench.restores.startCopy(target.id, spec)
    await untilCopied(bench.restores, target.id)
    await bench.postgres.ensureRunning(target.id, { ...target.spec, closed: true })
    await untilRecovered(bench.restores, target.id, spec)
    const pid = await untilReady(bench.postgres, target.id)
    await expect(ask(target.spec.port, 'select 1')).rejects.toThrow('no pg_hba.conf entry')
    await bench.restores.finish(target.id, spec)
    await bench.postgres.ensureRunning(target.id, target.spec)
    await until(() =>
      ask(target.spec.port, 'select 1').then(
        () => false,
        (error: Error) => error.message.includes('authentication failed'),
      ),
    )
    expect(await untilReady(bench.postgres, target.id)).toBe(pid)
  })

  it('restores a restored cluster, before and after its first own backup', async () => {
    const child = await restore({ kind: 'time', time: at[3]! })
    if (child.restored.is !== 'promoted') throw new Error(child.restored.reason)
    await startArchive(bench, child)
    const childAt = await commit(bench, child.id, 30)
    await commit(bench, child.id, 31)
    const fork = ownPiece(source.id, child.restored.endLsn)
    const own = ownPiece(child.id, await cut(bench, child.id), 2)
    const early = { pieces: [fork, own], timeline: 2 }
    const grandchildren = await Promise.all([
      restore({ kind: 'time', time: childAt }, early),
      restore({ kind: 'time', time: longAfter }, early),
    ])
    expect(grandchildren.map(({ restored }) => restored)).toMatchObject([{ timeline: 3 }, { timeline: 3 }])
    expect(await Promise.all(grandchildren.map(({ id }) => numbers(bench, id)))).toEqual([
      [1, 2, 3, 30],
      [1, 2, 3, 30, 31],
    ])

    const ownBackup = await takeBackup(bench, child, 'own')
    const lateAt = await commit(bench, child.id, 32)
    await commit(bench, child.id, 33)
    const late = { backup: ownBackup, pieces: [ownPiece(child.id, await cut(bench, child.id), 2)], timeline: 2 }
    const both = await Promise.all([
      restore({ kind: 'time', time: lateAt }, late),
      restore({ kind: 'immediate' }, late),
    ])
    expect(await Promise.all(both.map(({ id }) => numbers(bench, id)))).toEqual([
      [1, 2, 3, 30, 31, 32],
      [1, 2, 3, 30, 31],
    ])
  })

  it('ends exactly at the cut while the source keeps writing', async () => {
    let writing = true
    let n = 1000
    const writers = Array.from({ length: 2 }, async () => {
      while (writing) await bench.postgres.query(source.id, 'fly-db', 'insert into public.number values ($1)', [n++])
    })
    try {
      const [row] = await bench.postgres.query<{ lsn: string; n: number }>(
        source.id,
        'fly-db',
        `select pg_current_wal_insert_lsn()::text as lsn`,
      )
      const known = (await numbers(bench, source.id)).length
      await until(async () => (await numbers(bench, source.id)).length > known + 50)
      await cut(bench, source.id)
      const { id, restored } = await restore({ kind: 'end' }, { pieces: [ownPiece(source.id, row!.lsn)] })
      if (restored.is !== 'promoted') throw new Error(restored.reason)
      expect(parseLsn(restored.endLsn)).toBeLessThanOrEqual(parseLsn(row!.lsn))
      XX
    } finally {
      writing = false
      await Promise.all(writers)
      await bench.postgres.query(source.id, 'fly-db', 'delete from public.number where n >= 1000')
    }
  })

  it('refuses a backup with a flipped byte, and one that lacks a file', async () => {
    const flipped = copyOfSource()
    flip(`${flipped.path}/backups/first/data/base/1/1255`, 5000)
    const lacking = copyOfSource()
    rmSync(`${lacking.path}/backups/first/data/base/1/1259`)
    const [one, other] = await Promise.all([
      restore({ kind: 'end' }, flipped.change),
      restore({ kind: 'end' }, lacking.change),
    ])
    expect(one.restored).toEqual({
      is: 'failed',
      reason: 'backup first is damaged: checksum mismatch for file "base/1/1255"',
    })
    expect(other.restored).toEqual({
      is: 'failed',
      reason: 'backup first is damaged: "base/1/1259" is present in the manifest but not on disk',
    })
    expect(existsSync(clusterPaths(bench.home, one.id).data)).toBe(false)
    expect(readdirSync(clusterPaths(bench.home, one.id).directory)).toEqual(['copy.plan'])
  })

  it('refuses a log with a flipped byte before the target, naming the place', async () => {
    const damaged = copyOfSource()
    const archive = `${damaged.path}/archive/${epoch}`
    const file = readdirSync(archive).find((name) => readFileSync(`${archive}/${name}`).includes('needle 5'))!
    flip(`${archive}/${file}`, readFileSync(`${archive}/${file}`).indexOf('needle 5'))
    const outcomes = await Promise.all([
      restore({ kind: 'end' }, damaged.change),
      restore({ kind: 'time', time: at[6]! }, damaged.change),
    ])
    for (const { restored } of outcomes) {
      expect(restored.is).toBe('failed')
      const { reason } = restored as { reason: string }
      expect(reason).toMatch(/^the write-ahead log is damaged: replay ended at \S+ instead of \S+ \(incorrect resource/)
      expect(reason).toContain(end)
    }
    // What lies before the damage is not lost.
    const { id } = await restore({ kind: 'time', time: at[3]! }, damaged.change)
    expect(await numbers(bench, id)).toEqual([1, 2, 3])
  })

  it('refuses a log that lacks a segment or has one of another cluster', async () => {
    const [segment] = readdirSync(`${bench.root}/${source.id}/archive/${epoch}`).sort().slice(1)
    const lacking = copyOfSource()
    rmSync(`${lacking.path}/archive/${epoch}/${segment}`)
    const foreign = copyOfSource()
    const file = readFileSync(`${foreign.path}/archive/${epoch}/${segment}`)
    file.writeBigUInt64LE(4711n, 24)
    writeFileSync(`${foreign.path}/archive/${epoch}/${segment}`, file)
    const outcomes = await Promise.all([
      restore({ kind: 'end' }, lacking.change),
      restore({ kind: 'end' }, foreign.change),
    ])
    for (const { restored } of outcomes) {
      expect(restored).toMatchObject({ is: 'failed', reason: expect.stringContaining(segment!) })
    }
  })

  it('leaves the source as it was', async () => {
    const [row] = await bench.postgres.query(
      source.id,
      'fly-db',
      `select left(pg_walfile_name(pg_current_wal_lsn()), 8) as timeline, (select count(*)::int from pg_replication_slots) as slots`,
    )
    expect(row).toEqual({ timeline: '00000001', slots: 1 })
    expect(await numbers(bench, source.id)).toEqual([1, 2, 3, 4, 5, 6, 7])
  })
})

function flip(file: string, at: number): void {
  const content = readFileSync(file)
  content[at] = content[at]! ^ 0xff
  writeFileSync(file, content)
}
