import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { killProcess, listProcesses, readEnvironment } from '../../../src/drivers/host/process-list.ts'
import { clusterPaths } from '../../../src/drivers/postgres/paths.ts'
import type { RestoreSpec } from '../../../src/drivers/postgres/restore/driver.ts'
import { restoreDriver } from '../../../src/drivers/postgres/restore/restore.ts'
import type { Repository } from '../../../src/drivers/repository/driver.ts'
import { newId } from '../../../src/model/ids.ts'
import type { Toolchain } from '../../../src/model/postgres/toolchain.ts'
import { parseLsn } from '../../../src/model/postgres/wal.ts'
import { ask, type TestCluster, untilReady } from '../../support/cluster.ts'
import {
  type Backup,
  commit,
  copyInRepository,
  cut,
  endAt,
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
} from '../../support/restore.ts'
import { until } from '../../support/until.ts'

let bench: RestoreBench

beforeAll(async () => {
  bench = await openRestoreBench()
})
afterEach(() => bench.removeTargets())
afterAll(() => bench?.remove(), 120_000)

/** Shifts a time by microseconds. */
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

  function specFor(target: TestCluster, change: Partial<RestoreSpec> = {}): RestoreSpec {
    const { toolchain, uid } = target.spec
    return { toolchain, uid, backup, pieces: [ownPiece(source.id, end)], timeline: 1, ...change }
  }

  async function restore(goal: Target, change: Partial<RestoreSpec> = {}) {
    const target = await bench.newTarget(source)
    return restoreInto(bench, target, await endAt(bench, specFor(target, change), goal))
  }

  /** Copies the source's part of the repository under another name, in order to damage it. */
  function copyOfSource(): { id: string; path: string; change: Partial<RestoreSpec> } {
    const id = newId()
    const path = `${bench.root}/${id}`
    copyInRepository(bench, source.id, id)
    return { id, path, change: { backup: { ...backup, clusterId: id }, pieces: [ownPiece(id, end)] } }
  }

  test.each([
    ['an exact commit time, inclusively', () => at[4]!, [1, 2, 3, 4]],
    ['the microsecond before a commit', () => moved(at[4]!, -1), [1, 2, 3]],
    ['a time with an offset', () => withOffset(at[3]!), [1, 2, 3]],
    ['the last commit before the cut', () => at[6]!, [1, 2, 3, 4, 5, 6]],
    ['an idle time, although the source has written since', () => longAfter, [1, 2, 3, 4, 5, 6]],
  ])('restores to %s', async (_name, time, expected) => {
    const { id, restored } = await restore({ kind: 'time', time: time() })
    expect(restored).toMatchObject({ is: 'promoted', timeline: 2 })
    expect(await numbers(bench, id)).toEqual(expected)
  })

  function withOffset(time: string): string {
    return `${moved(time, 20_700_000_000).slice(0, 26)}+05:45`
  }

  test('restores to the end of a backup and nothing later', async () => {
    const { id, restored } = await restore({ kind: 'end' }, { pieces: [ownPiece(source.id, backup.stopLsn)] })
    expect(restored).toEqual({ is: 'promoted', timeline: 2, endLsn: backup.stopLsn, replayedUntil: null })
    expect(await numbers(bench, id)).toEqual([1])
  })

  test('restores to the end of the plan, with prepared transactions, and leaves no recovery settings', async () => {
    await bench.postgres.query(
      source.id,
      'fly-db',
      `begin; insert into public.number values (100); prepare transaction 'kept'`,
    )
    const target = await bench.newTarget(source)
    const spec = specFor(target, { pieces: [ownPiece(source.id, await cut(bench, source.id))] })
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
    // A repetition, as after a crash, keeps settings that were changed since.
    await bench.postgres.query(id, 'postgres', `alter system set work_mem = '5MB'`)
    await bench.restores.finish(id, spec)
    expect(readFileSync(`${data}/postgresql.auto.conf`, 'utf8')).toContain('5MB')
  })

  test('accepts no clients before it is finished, and then without a restart', async () => {
    const target = await bench.newTarget(source)
    const spec = specFor(target)
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

  test('restores a restored cluster, before and after its first own backup', async () => {
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
      restore({ kind: 'end' }, { ...late, pieces: [ownPiece(child.id, ownBackup.stopLsn, 2)] }),
    ])
    expect(await Promise.all(both.map(({ id }) => numbers(bench, id)))).toEqual([
      [1, 2, 3, 30, 31, 32],
      [1, 2, 3, 30, 31],
    ])
  })

  test('ends at the end of the plan while the source keeps writing', async () => {
    let n = 1000
    let writing = true
    const write = async () => {
      while (writing) await commit(bench, source.id, n++, 'x'.repeat(2000))
    }
    const writers = [write(), write()]
    try {
      await until(async () => (await numbers(bench, source.id)).length > 30)
      const before = await numbers(bench, source.id)
      const lsn = await cut(bench, source.id)
      const after = await numbers(bench, source.id)
      const { id, restored } = await restore({ kind: 'time', time: longAfter }, { pieces: [ownPiece(source.id, lsn)] })
      if (restored.is !== 'promoted') throw new Error(restored.reason)
      expect(parseLsn(restored.endLsn)).toBeLessThanOrEqual(parseLsn(lsn))
      const found = await numbers(bench, id)
      expect(found).toEqual(expect.arrayContaining(before))
      expect(after).toEqual(expect.arrayContaining(found))
    } finally {
      writing = false
      await Promise.all(writers)
      await bench.postgres.query(source.id, 'fly-db', 'delete from public.number where n >= 1000')
    }
  })

  test('rejects a backup with a flipped byte or a missing file', async () => {
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
      damage: 'checksum mismatch for file "base/1/1255"',
    })
    expect(other.restored).toEqual({
      is: 'failed',
      reason: 'backup first is damaged: "base/1/1259" is present in the manifest but not on disk',
      damage: '"base/1/1259" is present in the manifest but not on disk',
    })
    expect(existsSync(clusterPaths(bench.home, one.id).data)).toBe(false)
    expect(readdirSync(clusterPaths(bench.home, one.id).directory)).toEqual(['copy', 'copy.plan'])
  })

  test('rejects WAL with a flipped byte before the target and names the position', async () => {
    const damaged = copyOfSource()
    const archive = `${damaged.path}/archive/${epoch}`
    const file = readdirSync(archive).find((name) => readFileSync(`${archive}/${name}`).includes('needle 5'))!
    flip(`${archive}/${file}`, readFileSync(`${archive}/${file}`).indexOf('needle 5'))
    const { restored } = await restore({ kind: 'end' }, damaged.change)
    expect(restored.is).toBe('failed')
    const { reason } = restored as { reason: string }
    expect(reason).toMatch(/^the write-ahead log is damaged: replay ended at \S+ instead of \S+ \(incorrect resource/)
    expect(reason).toContain(end)
    // The search for the time passes the damage, too.
    await expect(restore({ kind: 'time', time: at[6]! }, damaged.change)).rejects.toThrow(
      /^the write-ahead log is damaged at/,
    )
    // Everything before the damage can still be restored.
    const { id } = await restore({ kind: 'end' }, { ...damaged.change, pieces: [ownPiece(damaged.id, backup.stopLsn)] })
    expect(await numbers(bench, id)).toEqual([1])
  })

  test('rejects WAL with a missing segment or one of another cluster', async () => {
    const segment = '000000010000000000000003'
    const lacking = copyOfSource()
    rmSync(`${lacking.path}/archive/${epoch}/${segment}`)
    const foreign = copyOfSource()
    alter(`${foreign.path}/archive/${epoch}/${segment}`, (file) => file.writeBigUInt64LE(4711n, 24))
    for (const { change } of [lacking, foreign]) {
      const { restored } = await restore({ kind: 'end' }, change)
      expect(restored).toMatchObject({ is: 'failed', reason: expect.stringContaining(segment) })
    }
    // The recovery detects it even if the plan did not.
    const planWal: Repository['planWal'] = async (pieces, from) => {
      const files = await bench.repository.planWal(pieces, from)
      const path = `${foreign.path}/archive/${epoch}/${segment}`
      return files.map((file) => (file.name === segment ? { ...file, path } : file))
    }
    const unwary = restoreDriver({ ...bench, repository: { ...bench.repository, planWal } })
    const target = await bench.newTarget(source)
    const { restored } = await restoreInto({ ...bench, restores: unwary }, target, specFor(target))
    expect(restored).toMatchObject({ is: 'failed', reason: expect.stringMatching(/^the write-ahead log is damaged/) })
  })

  test('does not change the source', async () => {
    const [row] = await bench.postgres.query(
      source.id,
      'fly-db',
      `select left(pg_walfile_name(pg_current_wal_lsn()), 8) as timeline, (select count(*)::int from pg_replication_slots) as slots`,
    )
    expect(row).toEqual({ timeline: '00000001', slots: 1 })
    expect(await numbers(bench, source.id)).toEqual([1, 2, 3, 4, 5, 6, 7])
  })
})

function alter(file: string, change: (content: Buffer) => void): void {
  const content = readFileSync(file)
  change(content)
  writeFileSync(file, content)
}

function flip(file: string, at: number): void {
  alter(file, (content) => content.writeUInt8(content.readUInt8(at) ^ 0xff, at))
}

describe('A copy', () => {
  let source: TestCluster
  let backup: Backup
  let end: string

  beforeAll(async () => {
    source = await startSource(bench, '17')
    backup = await takeBackup(bench, source, 'first')
    await commit(bench, source.id, 1)
    end = await cut(bench, source.id)
  })

  function specFor({ spec }: TestCluster, from = source.id): RestoreSpec {
    const { toolchain, uid } = spec
    const pieces = [ownPiece(source.id, end)]
    return { toolchain, uid, backup: { ...backup, clusterId: from }, pieces, timeline: 1 }
  }

  /** Replaces the verifier, so that the verification waits for the test. */
  function slowVerifier(toolchain: Toolchain): { toolchain: Toolchain; release(): void } {
    const tools = `${bench.home.path}/${newId()}/bin`
    mkdirSync(tools, { recursive: true })
    writeFileSync(`${tools}/pg_verifybackup`, `#!/bin/sh\nuntil [ -e ${tools}/go ]; do sleep 0.01; done\n`, {
      mode: 0o755,
    })
    return { toolchain: { ...toolchain, bin: tools, tools }, release: () => writeFileSync(`${tools}/go`, '') }
  }

  function processesOf(id: string, name: string): number[] {
    const mark = `BERTH_SERVICE=${bench.home.tree}/copy-${id}`
    return listProcesses()
      .filter((found) => found.name === name && readEnvironment(found.pid).includes(mark))
      .map((found) => found.pid)
  }

  test('is made once for concurrent callers and reports its progress', async () => {
    const target = await bench.newTarget(source)
    const { toolchain, release } = slowVerifier(target.spec.toolchain)
    const spec = { ...specFor(target), toolchain }
    expect(await bench.restores.inspectCopy(target.id)).toEqual({ is: 'absent' })
    await Promise.all([1, 2, 3].map(() => bench.restores.startCopy(target.id, spec)))
    let seen = await bench.restores.inspectCopy(target.id)
    await until(async () => {
      seen = await bench.restores.inspectCopy(target.id)
      return seen.is === 'running' && seen.bytesDone > 40_000_000
    })
    expect(seen).toMatchObject({ bytesTotal: expect.any(Number) })
    const directory = `${clusterPaths(bench.home, target.id).directory}/copy`
    const copies = readdirSync(directory).filter((name) => name.startsWith('.copy'))
    expect(copies).toHaveLength(1)
    release()
    expect(await untilCopied(bench.restores, target.id)).toEqual({ is: 'done' })
  })

  test('that finishes late does no harm', async () => {
    const target = await bench.newTarget(source)
    const { toolchain, release } = slowVerifier(target.spec.toolchain)
    await bench.restores.startCopy(target.id, { ...specFor(target), toolchain })
    const { directory, data } = clusterPaths(bench.home, target.id)
    await until(() => readdirSync(`${directory}/copy`).some((name) => name.startsWith('.copy~')))
    mkdirSync(data)
    writeFileSync(`${data}/precious`, '')
    release()
    await until(async () => (await bench.jobs.inspectJob(`copy-${target.id}`)).is === 'ended')
    expect(readdirSync(data)).toEqual(['precious'])
    expect(readdirSync(directory).sort()).toEqual(['copy', 'copy.plan', 'data'])
  })

  test('that is killed is repeated, and its removal leaves nothing behind', async () => {
    const target = await bench.newTarget(source)
    const from = newId()
    copyInRepository(bench, source.id, from)
    const big = `${bench.root}/${from}/backups/first/data/big`
    spawnSync('sh', ['-c', 'head -c 1000000000 /dev/zero > "$1"', 'fill', big])
    await bench.restores.startCopy(target.id, specFor(target, from))
    await until(() => processesOf(target.id, 'cp').length > 0)
    for (const pid of processesOf(target.id, 'cp')) killProcess(pid, 'SIGKILL')
    expect(await untilCopied(bench.restores, target.id)).toEqual({ is: 'failed', reason: 'the copy was interrupted' })

    const { toolchain } = slowVerifier(target.spec.toolchain)
    await bench.restores.startCopy(target.id, { ...specFor(target, from), toolchain })
    const { directory } = clusterPaths(bench.home, target.id)
    await until(() => readdirSync(`${directory}/copy`).some((name) => name.startsWith('.copy~')))
    const job = await bench.jobs.inspectJob(`copy-${target.id}`)
    killProcess((job as { pid: number }).pid, 'SIGKILL')
    expect(await untilCopied(bench.restores, target.id)).toEqual({ is: 'failed', reason: 'the copy was interrupted' })

    rmSync(big)
    await bench.restores.startCopy(target.id, specFor(target, from))
    expect(await untilCopied(bench.restores, target.id)).toEqual({ is: 'done' })
    await bench.restores.remove(target.id)
    expect(readdirSync(clusterPaths(bench.home, target.id).directory)).toEqual(['data'])
    expect(bench.supervisor.listServices().filter((name) => name.includes(target.id))).toEqual([])
  })

  test.runIf(isRoot())('that does not fit on the disk reports that and leaves nothing behind', async () => {
    const target = await bench.newTarget(source)
    const { directory } = clusterPaths(bench.home, target.id)
    mkdirSync(directory)
    spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=20m,mode=711', 'tmpfs', directory])
    try {
      await bench.restores.startCopy(target.id, specFor(target))
      expect(await untilCopied(bench.restores, target.id)).toEqual({
        is: 'failed',
        reason: expect.stringMatching(/^not enough disk space: 1\d MB are free, [5-9]\d MB are needed$/),
      })
      // The failed copy is not repeated.
      await bench.restores.startCopy(target.id, specFor(target))
      expect(await bench.restores.inspectCopy(target.id)).toMatchObject({ is: 'failed' })
      await bench.restores.remove(target.id)
      expect(readdirSync(directory)).toEqual([])
      expect(await bench.restores.inspectCopy(target.id)).toEqual({ is: 'absent' })
    } finally {
      await bench.restores.remove(target.id)
      spawnSync('umount', [directory])
    }
  })

  test.runIf(isRoot())('that leaves no space for the replay fails because of a full disk', async () => {
    const target = await bench.newTarget(source)
    const { directory, data } = clusterPaths(bench.home, target.id)
    mkdirSync(directory)
    spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=90m,mode=711', 'tmpfs', directory])
    try {
      const spec = specFor(target)
      await bench.restores.startCopy(target.id, spec)
      expect(await untilCopied(bench.restores, target.id)).toEqual({ is: 'done' })
      // Enough space for the files of the server, but not for another segment.
      spawnSync('sh', ['-c', 'cat /dev/zero > "$1"; truncate -s -1M "$1"', 'fill', `${data}/filler`])
      await bench.postgres.ensureRunning(target.id, { ...target.spec, closed: true })
      expect(await untilRecovered(bench.restores, target.id, spec)).toEqual({
        is: 'failed',
        reason: 'the disk is full',
      })
    } finally {
      await bench.postgres.stop(target.id)
      spawnSync('umount', [directory])
    }
  })
})
