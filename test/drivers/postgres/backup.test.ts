import { createHash } from 'node:crypto'
import {
  closeSync,
  cpSync,
  existsSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { dirname } from 'node:path'
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { killProcess } from '../../../src/drivers/host/process-list.ts'
import { backupDriver } from '../../../src/drivers/postgres/backup/backup.ts'
import type { BackupDriver, BackupFacts, BackupState } from '../../../src/drivers/postgres/backup/driver.ts'
import { receiverDriver } from '../../../src/drivers/postgres/receiver/receiver.ts'
import { ensureTools } from '../../../src/drivers/postgres/toolchain/tools.ts'
import { uidStride } from '../../../src/drivers/postgres/users.ts'
import { directoryRepository } from '../../../src/drivers/repository/directory.ts'
import type { BackupDescription, Repository } from '../../../src/drivers/repository/driver.ts'
import type { JobDriver } from '../../../src/drivers/s6/driver.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import type { PostgresMajor } from '../../../src/model/postgres/cluster.ts'
import type { Toolchain } from '../../../src/model/postgres/toolchain.ts'
import { parseLsn } from '../../../src/model/postgres/wal.ts'
import { type ClusterBench, connect, openBench, type TestCluster } from '../../support/cluster.ts'
import { processesBelow } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

let bench: ClusterBench
let repository: Repository
let jobs: JobDriver
let backups: BackupDriver
const clusters = {} as Record<PostgresMajor, TestCluster>
let count = 0
let label = ''

beforeAll(async () => {
  bench = await openBench()
  repository = directoryRepository(`${bench.home.path}/repository`)
  jobs = jobDriver(bench.supervisor)
  backups = backupDriver({ home: bench.home, jobs, repository })
  for (const major of ['16', '17'] as const) clusters[major] = await bench.startCluster(major)
})

beforeEach(() => {
  count += 1
  label = `20261115-1002${String(count).padStart(2, '0')}F`
})

afterAll(() => bench.remove())

function start({ id, spec }: TestCluster, change: { toolchain?: Toolchain; maxRateKb?: number } = {}): Promise<void> {
  return backups.startBackup(id, label, { ...spec, cgroup: undefined, ...change })
}

async function untilNot(is: BackupState['is'], { id }: TestCluster): Promise<BackupState> {
  let state: BackupState = { is: 'absent' }
  await until(async () => {
    state = await backups.inspectBackup(id, label)
    return state.is !== is
  })
  return state
}

async function untilDone(cluster: TestCluster): Promise<BackupFacts> {
  const state = await untilNot('running', cluster)
  if (state.is !== 'done') throw new Error(`the backup is ${JSON.stringify(state)}`)
  const { is: _, ...facts } = state
  return facts
}

function describe(cluster: TestCluster, facts: BackupFacts): BackupDescription {
  const { id, spec } = cluster
  const names = { clusterId: id, clusterName: 'shop', orgSlug: 'acme', label }
  return { ...names, epoch: 1, pgMajor: spec.toolchain.major, settings: {}, ...facts }
}

async function keep(cluster: TestCluster): Promise<BackupFacts> {
  await start(cluster)
  const facts = await untilDone(cluster)
  await backups.finishBackup(describe(cluster, facts))
  return facts
}

async function scrub({ id, spec }: TestCluster) {
  await backups.startScrub(id, label, spec.toolchain)
  await until(async () => (await backups.inspectScrub(id)).is !== 'running')
  const state = await backups.inspectScrub(id)
  await backups.removeScrub(id)
  return state
}

/** Compares the files of an archive with these digests. */
async function scrubLog({ id }: TestCluster, directory: string, files: { name: string; sha256: string }[]) {
  await backups.startLogScrub(id, { directory, files })
  await until(async () => (await backups.inspectLogScrub(id)).is !== 'running')
  const state = await backups.inspectLogScrub(id)
  await backups.removeScrub(id)
  return state
}

function damage(file: string): void {
  const descriptor = openSync(file, 'r+')
  writeSync(descriptor, Buffer.from([0xa5]), 0, 1, 4711)
  closeSync(descriptor)
}

/** Inserts rows, one per transaction, until it is stopped. */
async function writeUntil(cluster: TestCluster): Promise<() => Promise<number>> {
  const client = await connect(cluster.spec.port)
  await client.query('CREATE TABLE IF NOT EXISTS public.counted (n int PRIMARY KEY)')
  let n = 0
  let stopped = false
  const writing = (async () => {
    for (; !stopped; n += 1) await client.query('INSERT INTO public.counted VALUES ($1)', [n])
  })()
  return async () => {
    stopped = true
    await writing
    await client.end()
    return n
  }
}

test.each(['16', '17'] as const)(
  'makes a verified backup of PostgreSQL %s during writes, with its WAL positions',
  async (major) => {
    const cluster = clusters[major]
    const { id } = cluster
    const receivers = receiverDriver({ ...bench, repository })
    await receivers.ensureSlot(id, 'berth_1')
    const { toolchain, uid, port } = cluster.spec
    await receivers.ensureReceiver(id, { epoch: 1, slot: 'berth_1', toolchain, uid, port })
    const stop = await writeUntil(cluster)
    const before = Date.now()
    expect(await backups.inspectBackup(id, label)).toEqual({ is: 'absent' })
    await start(cluster)
    await start(cluster)
    const facts = await untilDone(cluster)
    expect(await stop()).toBeGreaterThan(0)
    expect(facts.timeline).toBe(1)
    expect(parseLsn(facts.stopLsn)).toBeGreaterThan(parseLsn(facts.startLsn))
    expect(Date.parse(facts.startedAt)).toBeGreaterThanOrEqual(before)
    expect(Date.parse(facts.stoppedAt)).toBeGreaterThan(Date.parse(facts.startedAt))
    expect(facts.stoppedAt).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z$/)
    expect(facts.sizeBytes).toBeGreaterThan(20_000_000)
    expect(await repository.findBackup(id, label)).toBeUndefined()
    await backups.finishBackup(describe(cluster, facts))
    await backups.finishBackup(describe(cluster, facts))
    expect(await repository.findBackup(id, label)).toEqual({
      ...describe(cluster, facts),
      manifestChecksum: expect.stringMatching(/^[0-9a-f]{64}$/),
    })
    expect(await backups.inspectBackup(id, label)).toEqual({ is: 'done', ...facts })
    expect(await jobs.inspectJob(`backup-${id}`)).toEqual({ is: 'absent' })
    const data = repository.backupData(id, label)
    expect(readdirSync(`${data}/pg_wal`).filter((name) => name.length === 24)).toEqual([])
    expect(statSync(data).uid).toBe(isRoot() ? cluster.spec.uid! + 2 * uidStride : process.getuid!())
    expect(statSync(data).mode & 0o777).toBe(0o700)
    await until(async () => {
      const slot = await receivers.inspectSlot(id, 'berth_1')
      return slot.is === 'ok' && (slot.flushLsn ?? 0n) >= parseLsn(facts.stopLsn)
    })
    const piece = { clusterId: id, epoch: 1, timeline: 1, end: facts.stopLsn }
    expect((await repository.planWal([piece], parseLsn(facts.startLsn))).length).toBeGreaterThan(0)
    expect(await scrub(cluster)).toEqual({ is: 'passed' })
    await receivers.removeReceiver(id)
    await receivers.dropSlot(id, 'berth_1')
  },
)

test.each(['16', '17'] as const)('finds a flipped byte in a kept backup of PostgreSQL %s', async (major) => {
  const cluster = clusters[major]
  await keep(cluster)
  damage(`${repository.backupData(cluster.id, label)}/base/1/1259`)
  const state = await scrub(cluster)
  expect(state).toMatchObject({ is: 'failed' })
  expect(JSON.stringify(state)).toContain('base/1/1259')
})

test('finds a missing file in a kept backup, and a missing backup', async () => {
  const cluster = clusters['17']
  await keep(cluster)
  rmSync(`${repository.backupData(cluster.id, label)}/base/1/1259`)
  expect(await scrub(cluster)).toMatchObject({ is: 'failed', reason: expect.stringContaining('base/1/1259') })
  await repository.removeBackup(cluster.id, label)
  expect(await scrub(cluster)).toMatchObject({ is: 'failed', reason: expect.stringContaining('is gone') })
})

test('fails if the copy differs from what the server sent', async () => {
  const cluster = clusters['17']
  const tools = await ensureTools(cluster.spec.toolchain)
  const place = `${bench.home.path}/bad-tools/bin`
  cpSync(dirname(tools), dirname(place), { recursive: true, verbatimSymlinks: true })
  renameSync(`${place}/pg_basebackup`, `${place}/copy`)
  const flip = 'printf X | dd of=data/base/1/1259 bs=1 seek=4711 conv=notrunc status=none'
  writeFileSync(`${place}/pg_basebackup`, `#!/bin/sh\n'${place}/copy' "$@" && ${flip}\n`, { mode: 0o755 })
  await start(cluster, { toolchain: { ...cluster.spec.toolchain, bin: place, tools: place } })
  const state = await untilNot('running', cluster)
  expect(state).toMatchObject({ is: 'failed', reason: expect.stringContaining('The copy differs from its checksums') })
  expect(JSON.stringify(state)).toContain('base/1/1259')
  await backups.abandonBackup(cluster.id, label)
})

test('fails if the server is down', async () => {
  const cluster = clusters['17']
  await backups.startBackup(cluster.id, label, { ...cluster.spec, port: 1 })
  const state = await untilNot('running', cluster)
  expect(state).toMatchObject({
    is: 'failed',
    reason: expect.stringMatching(/^The copy failed: pg_basebackup: error: /),
  })
  await backups.abandonBackup(cluster.id, label)
})

test('fails if the copy is killed, and leaves nothing behind when it is abandoned', async () => {
  const cluster = clusters['17']
  const { id } = cluster
  await start(cluster, { maxRateKb: 4096 })
  await until(async () => {
    const state = await backups.inspectBackup(id, label)
    return state.is === 'running' && state.bytesDone > 0 && state.bytesTotal > state.bytesDone
  })
  // There is no second process that streams WAL, because of --wal-method=none.
  const copies = processesBelow(bench.home.path).filter((found) => found.name === 'pg_basebackup')
  expect(copies).toHaveLength(1)
  killProcess(copies[0]!.pid, 'SIGKILL')
  const state = await untilNot('running', cluster)
  expect(state).toEqual({ is: 'failed', reason: expect.stringMatching(/^The copy failed/) })
  await backups.abandonBackup(id, label)
  await backups.abandonBackup(id, label)
  expect(await backups.inspectBackup(id, label)).toEqual({ is: 'absent' })
  expect(existsSync(repository.stagedBackup(id, label))).toBe(false)
  expect(await repository.findBackup(id, label)).toBeUndefined()
  expect(bench.supervisor.listServices().filter((name) => name.startsWith('backup-'))).toEqual([])
  await until(() => readdirSync(`${bench.home.path}/repository/.trash`).length === 0)
  await until(
    async () => (await bench.postgres.query(id, 'postgres', 'SELECT FROM pg_stat_progress_basebackup')).length === 0,
  )
})

test('ends a running backup when it is abandoned or replaced', async () => {
  const cluster = clusters['17']
  const { id } = cluster
  const running = () => processesBelow(bench.home.path).filter((found) => found.name === 'pg_basebackup').length
  await start(cluster, { maxRateKb: 4096 })
  await until(() => running() === 1)
  await backups.abandonBackup(id, label)
  expect(running()).toBe(0)
  await start(cluster, { maxRateKb: 4096 })
  await until(() => running() === 1)
  const first = label
  label = '20261115-235959F'
  await start(cluster, { maxRateKb: 4096 })
  expect(await backups.inspectBackup(id, first)).toEqual({ is: 'absent' })
  await until(() => running() === 1)
  await backups.abandonBackup(id, first)
  expect(running()).toBe(1)
  await backups.abandonBackup(id, label)
  const facts = await keep(cluster)
  expect(await repository.findBackup(id, label)).toMatchObject(facts)
  expect(running()).toBe(0)
})

test('archived WAL is compared with its digests as it is on disk', async () => {
  const cluster = clusters['17']
  const archive = await repository.ensureArchive(cluster.id, 7)
  const names = ['00000002.history', ...[1, 2, 3].map((n) => `00000002000000000000000${n}`)]
  const files = names.map((name) => {
    const content = Buffer.alloc(100_000, name)
    writeFileSync(`${archive}/${name}`, content)
    return { name, sha256: createHash('sha256').update(content).digest('hex') }
  })
  expect(await scrubLog(cluster, archive, files)).toEqual({ is: 'passed', file: names[3] })
  rmSync(`${archive}/${names[1]}`)
  // Retention may have removed it. What is missing is found by listing.
  expect(await scrubLog(cluster, archive, files)).toEqual({ is: 'passed', file: names[3] })
  damage(`${archive}/${names[2]}`)
  const differs = { is: 'failed', kind: 'damaged', file: names[2], reason: 'differs from its recorded digest' }
  expect(await scrubLog(cluster, archive, files)).toEqual(differs)
  rmSync(`${archive}/${names[0]}`)
  symlinkSync(`${archive}/${names[3]}`, `${archive}/${names[0]}`)
  const missing = { is: 'failed', kind: 'missing', file: names[0], reason: 'is missing from its archive' }
  expect(await scrubLog(cluster, archive, files)).toEqual(missing)
})
