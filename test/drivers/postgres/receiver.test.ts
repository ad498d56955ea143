import { readdirSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { ReceiverDriver, SlotState } from '../../../src/drivers/postgres/receiver/driver.ts'
import { receiverDriver } from '../../../src/drivers/postgres/receiver/receiver.ts'
import { directoryRepository } from '../../../src/drivers/repository/directory.ts'
import type { Repository } from '../../../src/drivers/repository/driver.ts'
import type { PostgresMajor } from '../../../src/model/postgres/cluster.ts'
import {
  formatLsn,
  historyName,
  type Lsn,
  parseLsn,
  parseSegmentName,
  segmentName,
} from '../../../src/model/postgres/wal.ts'
import { type ClusterBench, openBench, type TestCluster, untilReady } from '../../support/cluster.ts'
import { until } from '../../support/until.ts'

const slot = 'berth_1'
let bench: ClusterBench
let repository: Repository
let receivers: ReceiverDriver

beforeAll(async () => {
  bench = await openBench()
  repository = directoryRepository(`${bench.home.path}/repository`)
  receivers = receiverDriver({ ...bench, repository })
})

afterAll(() => bench.remove())

async function startArchived(major: PostgresMajor): Promise<TestCluster> {
  const cluster = await bench.startCluster(major)
  await receivers.ensureSlot(cluster.id, slot)
  await ensureReceiver(cluster)
  await query(cluster, 'CREATE TABLE public.line (text text)')
  return cluster
}

function ensureReceiver({ id, spec }: TestCluster, change: { epoch?: number; slot?: string } = {}): Promise<void> {
  const { toolchain, port } = spec
  return receivers.ensureReceiver(id, { epoch: 1, slot, toolchain, uid: spec.uid, port, ...change })
}

function query({ id }: TestCluster, text: string) {
  return bench.postgres.query(id, 'fly-db', text)
}

async function pidOf({ id }: TestCluster): Promise<number> {
  let pid = 0
  await until(async () => {
    const state = await receivers.inspectReceiver(id)
    if (state.is === 'running') pid = state.pid
    return state.is === 'running'
  })
  return pid
}

async function inspect({ id }: TestCluster, name = slot): Promise<SlotState & { is: 'ok' }> {
  const state = await receivers.inspectSlot(id, name)
  if (state.is !== 'ok') throw new Error(`the slot is ${state.is}`)
  return state
}

/** Returns a position after everything committed so far, once it is archived. */
async function untilArchived(cluster: TestCluster, name = slot): Promise<Lsn> {
  const [row] = await query(cluster, 'SELECT pg_current_wal_flush_lsn()::text AS lsn')
  const end = parseLsn(row!.lsn as string)
  await until(async () => ((await inspect(cluster, name)).flushLsn ?? 0n) >= end)
  return end
}

async function archiveOf({ id }: TestCluster, epoch = 1): Promise<string> {
  return repository.ensureArchive(id, epoch)
}

/** Reads the archived segment that contains this position. */
async function readArchived(cluster: TestCluster, at: Lsn, timeline = 1): Promise<Buffer> {
  const piece = { clusterId: cluster.id, epoch: 1, timeline, end: formatLsn(at) }
  const [file] = await repository.planWal([piece], at - 1n)
  return readFileSync(file!.path)
}

async function countOf(cluster: TestCluster, at: Lsn, word: string): Promise<number> {
  return (await readArchived(cluster, at)).toString('latin1').split(word).length - 1
}

/** Compares every complete segment with that of the cluster. */
async function listDifferences(cluster: TestCluster): Promise<{ same: number; different: string[] }> {
  const own = `${bench.home.path}/clusters/${cluster.id}/data/pg_wal`
  const names = readdirSync(await archiveOf(cluster)).filter((name) => parseSegmentName(name)?.partial === false)
  const archive = await archiveOf(cluster)
  const different = names.filter((name) => !readFileSync(`${archive}/${name}`).equals(readFileSync(`${own}/${name}`)))
  return { same: names.length - different.length, different }
}

test.each(['16', '17'] as const)('archives every commit of PostgreSQL %s at once, byte for byte', async (major) => {
  const cluster = await startArchived(major)
  await receivers.ensureSlot(cluster.id, slot)
  await query(cluster, "INSERT INTO public.line VALUES ('first')")
  await query(cluster, "INSERT INTO public.line VALUES ('needle')")
  const end = await untilArchived(cluster)
  expect(await countOf(cluster, end, 'needle')).toBe(1)
  for (let n = 0; n < 3; n += 1) {
    await query(cluster, `INSERT INTO public.line SELECT md5(n::text) FROM generate_series(1, 5000) n`)
    await query(cluster, 'SELECT pg_switch_wal()')
  }
  await query(cluster, "INSERT INTO public.line VALUES ('after')")
  await untilArchived(cluster)
  const compared = await listDifferences(cluster)
  expect(compared.different).toEqual([])
  expect(compared.same).toBeGreaterThanOrEqual(3)
  await until(async () => {
    const [row] = await query(cluster, 'SELECT application_name, state FROM pg_stat_replication')
    expect(row).toMatchObject({ application_name: 'berth-archive' })
    return row!.state === 'streaming'
  })
  const archived = await repository.archiveEnd(cluster.id, 1, 1, end - 1n)
  expect(archived).toBeGreaterThan(end)
  expect(statSync(await archiveOf(cluster)).mode & 0o777).toBe(0o700)
})

test('continues without a gap after it is killed', async () => {
  const cluster = await startArchived('17')
  await query(cluster, "INSERT INTO public.line VALUES ('page')")
  await query(cluster, "INSERT INTO public.line VALUES ('before-kill')")
  const before = await untilArchived(cluster)
  const pid = await pidOf(cluster)
  process.kill(pid, 'SIGKILL')
  expect(await countOf(cluster, before, 'before-kill')).toBe(1)
  await query(cluster, "INSERT INTO public.line VALUES ('while-dead')")
  const after = await untilArchived(cluster)
  expect(await pidOf(cluster)).not.toBe(pid)
  for (const word of ['before-kill', 'while-dead']) expect(await countOf(cluster, after, word)).toBe(1)
  await query(cluster, 'SELECT pg_switch_wal()')
  await query(cluster, "INSERT INTO public.line VALUES ('after')")
  await untilArchived(cluster)
  expect((await listDifferences(cluster)).different).toEqual([])
})

test('replaces a segment that a full disk left truncated', async () => {
  const cluster = await startArchived('17')
  const archive = await archiveOf(cluster)
  for (const bytes of [5_000_000, 0]) {
    await untilArchived(cluster)
    await receivers.removeReceiver(cluster.id)
    expect(await receivers.inspectReceiver(cluster.id)).toEqual({ is: 'absent' })
    const partial = readdirSync(archive).find((name) => name.endsWith('.partial'))!
    truncateSync(`${archive}/${partial}`, bytes)
    await ensureReceiver(cluster)
    const end = await untilArchived(cluster)
    expect((await readArchived(cluster, end)).length).toBe(16_777_216)
  }
})

test('uses a new directory and slot for a new epoch', async () => {
  const cluster = await startArchived('17')
  await untilArchived(cluster)
  const pid = await pidOf(cluster)
  await ensureReceiver(cluster)
  expect(await pidOf(cluster)).toBe(pid)
  await receivers.ensureSlot(cluster.id, 'berth_2')
  await ensureReceiver(cluster, { epoch: 2, slot: 'berth_2' })
  await untilArchived(cluster, 'berth_2')
  expect(readdirSync(await archiveOf(cluster, 2))).toHaveLength(1)
  await receivers.dropSlot(cluster.id, slot)
  await receivers.dropSlot(cluster.id, slot)
  expect(await receivers.inspectSlot(cluster.id, slot)).toEqual({ is: 'absent' })
  // An active slot is dropped too.
  await receivers.dropSlot(cluster.id, 'berth_2')
  expect(await receivers.inspectSlot(cluster.id, 'berth_2')).toEqual({ is: 'absent' })
})

test.each(['16', '17'] as const)('detects that PostgreSQL %s removed WAL before it was archived', async (major) => {
  const cluster = await startArchived(major)
  await untilArchived(cluster)
  await receivers.removeReceiver(cluster.id)
  const settings = { max_slot_wal_keep_size: '1MB', min_wal_size: '32MB', max_wal_size: '32MB' }
  await bench.postgres.ensureRunning(cluster.id, { ...cluster.spec, settings })
  await until(async () => {
    await query(cluster, "INSERT INTO public.line VALUES ('x')")
    await query(cluster, 'SELECT pg_switch_wal()')
    await query(cluster, 'CHECKPOINT')
    return (await receivers.inspectSlot(cluster.id, slot)).is === 'lost'
  })
  await ensureReceiver(cluster)
  await until(() => bench.supervisor.readLog(`wal-${cluster.id}`, 50).length > 0)
  expect(await receivers.inspectSlot(cluster.id, slot)).toEqual({ is: 'lost' })
  await receivers.removeReceiver(cluster.id)
  await receivers.dropSlot(cluster.id, slot)
  await receivers.ensureSlot(cluster.id, 'berth_2')
  expect(await receivers.inspectSlot(cluster.id, 'berth_2')).toMatchObject({ is: 'ok', active: false })
})

test('follows the cluster to a new timeline and archives its history', async () => {
  const cluster = await startArchived('17')
  const { restartLsn: from } = await inspect(cluster)
  await query(cluster, "INSERT INTO public.line VALUES ('on one')")
  await bench.postgres.stop(cluster.id)
  writeFileSync(`${bench.home.path}/clusters/${cluster.id}/data/recovery.signal`, '')
  await bench.postgres.ensureRunning(cluster.id, { ...cluster.spec, settings: { restore_command: 'false' } })
  await untilReady(bench.postgres, cluster.id)
  await until(async () => (await query(cluster, 'SELECT pg_is_in_recovery() AS is'))[0]!.is === false)
  await query(cluster, "INSERT INTO public.line VALUES ('on two')")
  const end = await untilArchived(cluster)
  const place = { clusterId: cluster.id, epoch: 1, end: formatLsn(end) }
  const planned = await repository.planWal(
    [
      { ...place, timeline: 1 },
      { ...place, timeline: 2 },
    ],
    from!,
  )
  const names = planned.map((file) => file.name)
  expect(names).toContain(historyName(2))
  expect(names.at(0)).toBe(segmentName(1, from! / 16_777_216n))
  expect(names.at(-1)).toBe(segmentName(2, (end - 1n) / 16_777_216n))
})
