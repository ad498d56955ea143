import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { backupDriver } from '../../src/drivers/postgres/backup/backup.ts'
import type { BackupDriver } from '../../src/drivers/postgres/backup/driver.ts'
import type { ReceiverDriver } from '../../src/drivers/postgres/receiver/driver.ts'
import { receiverDriver } from '../../src/drivers/postgres/receiver/receiver.ts'
import type { RecoveryState, RestoreDriver, RestoreSpec } from '../../src/drivers/postgres/restore/driver.ts'
import { restoreDriver } from '../../src/drivers/postgres/restore/restore.ts'
import { ensureTools } from '../../src/drivers/postgres/toolchain/tools.ts'
import { directoryRepository } from '../../src/drivers/repository/directory.ts'
import type { Repository } from '../../src/drivers/repository/driver.ts'
import type { JobDriver } from '../../src/drivers/s6/driver.ts'
import { jobDriver } from '../../src/drivers/s6/job.ts'
import type { PostgresMajor } from '../../src/model/postgres/cluster.ts'
import { formatLsn, parseLsn, type WalPiece } from '../../src/model/postgres/wal.ts'
import { parseTime } from '../../src/model/time.ts'
import { type ClusterBench, openBench, type TestCluster } from './cluster.ts'
import { until } from './until.ts'

export interface RestoreBench extends ClusterBench {
  root: string
  repository: Repository
  jobs: JobDriver
  receivers: ReceiverDriver
  backups: BackupDriver
  restores: RestoreDriver
  /** Clusters that a test restored into; they are removed after it. */
  newTarget(source: TestCluster): Promise<TestCluster>
  removeTargets(): Promise<void>
}

export type Backup = RestoreSpec['backup']
export type Target = { kind: 'time'; time: string } | { kind: 'end' }

/** Ends the plan at a target time, as the platform does. */
export async function endAt({ repository }: RestoreBench, spec: RestoreSpec, target: Target): Promise<RestoreSpec> {
  if (target.kind === 'end') return spec
  const own = spec.pieces.at(-1)!
  const from = parseLsn(spec.pieces.at(-2)?.end ?? spec.backup.stopLsn)
  const range = { from, to: parseLsn(own.end) }
  const cut = await repository.findCut(own.clusterId, own.epoch, own.timeline, parseTime(rfc3339(target.time))!, range)
  return { ...spec, pieces: [...spec.pieces.slice(0, -1), { ...own, end: formatLsn(cut) }] }
}

function rfc3339(time: string): string {
  return time.replace(' ', 'T').replace(/([+-]\d\d)$/, '$1:00')
}

export const epoch = 1
const slot = 'berth_1'

/** Opens a home with all drivers that a restore needs. */
export async function openRestoreBench(directory?: string): Promise<RestoreBench> {
  const bench = await openBench(directory)
  const { home, supervisor, postgres } = bench
  const root = `${home.path}/repository`
  const repository = directoryRepository(root)
  const jobs = jobDriver(supervisor)
  const receivers = receiverDriver({ home, supervisor, repository, postgres })
  const restores = restoreDriver({ home, supervisor, jobs, repository, postgres })
  const targets: string[] = []
  return {
    ...bench,
    root,
    repository,
    jobs,
    receivers,
    backups: backupDriver({ home, jobs, repository }),
    restores,
    async newTarget({ spec }) {
      const cluster = await bench.newCluster(spec.toolchain.major)
      targets.push(cluster.id)
      return { ...cluster, spec: { ...cluster.spec, settings: spec.settings } }
    },
    async removeTargets() {
      const removed = targets.splice(0).map(async (id) => {
        await restores.remove(id)
        await receivers.removeReceiver(id)
        await postgres.remove(id)
      })
      await Promise.all(removed)
    },
  }
}

/** Starts a cluster with an archive and a table of numbers. */
export async function startSource(
  bench: RestoreBench,
  major: PostgresMajor,
  settings?: Record<string, string>,
): Promise<TestCluster> {
  const cluster = await bench.newCluster(major)
  const source = { ...cluster, spec: { ...cluster.spec, settings } }
  await ensureTools(source.spec.toolchain)
  await bench.postgres.ensureData(source.id, source.spec)
  await bench.postgres.ensureRunning(source.id, source.spec)
  await until(async () => (await bench.postgres.inspect(source.id)).is === 'ready')
  await startArchive(bench, source)
  await bench.postgres.query(source.id, 'fly-db', 'create table public.number (n int primary key, word text)')
  return source
}

export async function startArchive({ receivers }: RestoreBench, { id, spec }: TestCluster): Promise<void> {
  await receivers.ensureSlot(id, slot)
  await receivers.ensureReceiver(id, { epoch, slot, toolchain: spec.toolchain, port: spec.port })
  await until(async () => {
    const state = await receivers.inspectSlot(id, slot)
    return state.is === 'ok' && state.flushLsn !== undefined
  })
}

export async function takeBackup({ backups }: RestoreBench, { id, spec }: TestCluster, label: string): Promise<Backup> {
  await backups.startBackup(id, label, { toolchain: spec.toolchain, port: spec.port })
  let seen = await backups.inspectBackup(id, label)
  await until(async () => {
    seen = await backups.inspectBackup(id, label)
    return seen.is !== 'running'
  })
  if (seen.is !== 'done') throw new Error(`backup ${label}: ${JSON.stringify(seen)}`)
  const { is, ...facts } = seen
  const name = { clusterId: id, clusterName: 'source', orgSlug: 'org', label, epoch, pgMajor: spec.toolchain.major }
  await backups.finishBackup({ ...name, ...facts, settings: {} })
  return { clusterId: id, label, startLsn: facts.startLsn, stopLsn: facts.stopLsn }
}

/** Inserts a number in a transaction of its own; returns the time of the commit. */
export async function commit({ postgres }: RestoreBench, id: string, n: number, word = ''): Promise<string> {
  await postgres.query(id, 'fly-db', 'insert into public.number values ($1, $2)', [n, word])
  return commitTime(postgres, id, n)
}

async function commitTime(postgres: RestoreBench['postgres'], id: string, n: number): Promise<string> {
  const [row] = await postgres.query<{ at: string }>(
    id,
    'fly-db',
    `select to_char(pg_xact_commit_timestamp(xmin) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00' as at
     from public.number where n = $1`,
    [n],
  )
  return row!.at
}

/** Returns a position up to which all WAL is archived. */
export async function cut({ postgres, receivers }: RestoreBench, id: string): Promise<string> {
  const [row] = await postgres.query<{ lsn: string }>(id, 'postgres', 'select pg_current_wal_insert_lsn()::text as lsn')
  // A later record moves the archive past the position, even if it is right after a page header.
  await postgres.query(id, 'postgres', 'select pg_current_xact_id()')
  await until(async () => {
    const state = await receivers.inspectSlot(id, slot)
    return state.is === 'ok' && state.flushLsn !== undefined && state.flushLsn >= parseLsn(row!.lsn)
  })
  return row!.lsn
}

export function ownPiece(clusterId: string, end: string, timeline = 1): WalPiece {
  return { clusterId, epoch, timeline, end }
}

export type Outcome = TestCluster & { restored: Exclude<RecoveryState, { is: 'replaying' }> }

/** Runs a complete restore: copy, recovery, and opening the cluster to clients. */
export async function restoreInto(
  { postgres, restores, supervisor }: RestoreBench,
  target: TestCluster,
  spec: RestoreSpec,
): Promise<Outcome> {
  const { id } = target
  await restores.startCopy(id, spec)
  const copied = await untilCopied(restores, id)
  if (copied.is === 'failed') return { ...target, restored: copied }
  await postgres.ensureRunning(id, { ...target.spec, closed: true })
  const restored = await untilRecovered(restores, id, spec).catch((error: Error) => {
    throw new Error(`${error.message}\n${supervisor.readLog(`pg-${id}`, 40).join('\n')}`)
  })
  if (restored.is === 'failed') return { ...target, restored }
  await restores.finish(id, spec)
  await postgres.ensureRunning(id, target.spec)
  return { ...target, restored }
}

export async function untilCopied(restores: RestoreDriver, id: string) {
  let copied = await restores.inspectCopy(id)
  await until(async () => {
    copied = await restores.inspectCopy(id)
    return copied.is !== 'running' && copied.is !== 'absent'
  })
  return copied as Extract<typeof copied, { is: 'failed' | 'done' }>
}

export async function untilRecovered(restores: RestoreDriver, id: string, spec: RestoreSpec) {
  let seen = await restores.inspectRecovery(id, spec)
  await until(async () => {
    seen = await restores.inspectRecovery(id, spec)
    return seen.is === 'promoted' || seen.is === 'failed'
  })
  return seen as Outcome['restored']
}

export async function numbers({ postgres }: RestoreBench, id: string): Promise<number[]> {
  const rows = await postgres.query<{ n: number }>(id, 'fly-db', 'select n from public.number order by n')
  return rows.map((row) => row.n)
}

/** Copies everything of a cluster in the repository under another id, as if that were its own. */
export function copyInRepository({ root }: RestoreBench, from: string, to: string): void {
  spawnSync('cp', ['-a', `${root}/${from}`, `${root}/${to}`])
  for (const label of readdirSync(`${root}/${to}/backups`)) {
    const file = `${root}/${to}/backups/${label}/backup.json`
    writeFileSync(file, readFileSync(file, 'utf8').replaceAll(from, to))
  }
}
