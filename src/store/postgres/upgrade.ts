import type { RecordedToolchain } from '../../model/postgres/cluster.ts'
import type { UpgradePhase } from '../../model/postgres/upgrade.ts'
import type { Micros } from '../../model/time.ts'
import type { Query, Tx } from '../db.ts'
import { enqueue } from '../work.ts'
import { markUndescribed } from './cluster-describe.ts'
import { hasActiveImport } from './import.ts'

export interface Upgrade {
  clusterId: string
  kind: 'minor' | 'major'
  phase: UpgradePhase
  fromVersion: string
  toVersion: string
  plannedAt: Micros | null
  startedAt: Micros | null
  restartedAt: Micros | null
  previous: RecordedToolchain | null
  target: RecordedToolchain | null
  error: string | null
}

const columns = `cluster_id as "clusterId", kind, phase, from_version as "fromVersion", to_version as "toVersion",
  planned_at as "plannedAt", started_at as "startedAt", restarted_at as "restartedAt", previous, target, error`

export async function findUpgrade(db: Query, clusterId: string): Promise<Upgrade | undefined> {
  const { rows } = await db.query<Upgrade>({
    name: 'find-upgrade',
    text: `select ${columns} from upgrade where cluster_id = $1`,
    values: [clusterId],
  })
  return rows[0]
}

export interface NewMinorUpgrade {
  fromVersion: string
  toVersion: string
  plannedAt: Micros | null
}

const hasBegun = `upgrade.phase in ('restarting', 'reverting')`

/** Replaces an upgrade that has not begun. Returns false if one is in progress. */
export async function planUpgrade(tx: Tx, clusterId: string, upgrade: NewMinorUpgrade): Promise<boolean> {
  const { rowCount } = await tx.query(
    `insert into upgrade (cluster_id, kind, phase, from_version, to_version, planned_at)
     values ($1, 'minor', 'planned', $2, $3, timestamptz 'epoch' + $4::bigint * interval '1 microsecond')
     on conflict (cluster_id) do update set kind = 'minor', phase = 'planned', from_version = $2, to_version = $3,
       planned_at = excluded.planned_at, created_at = now(), started_at = null, restarted_at = null, finished_at = null,
       previous = null, target = null, error = null
     where not (${hasBegun})`,
    [clusterId, upgrade.fromVersion, upgrade.toVersion, upgrade.plannedAt?.toString() ?? null],
  )
  return rowCount === 1
}

/** Whether the cluster is being restarted with other programs. */
export async function isUpgrading(db: Query, clusterId: string): Promise<boolean> {
  const { rowCount } = await db.query(`select 1 from upgrade where cluster_id = $1 and ${hasBegun}`, [clusterId])
  return rowCount === 1
}

/** Returns the phase of the upgrade, which is removed if it is only planned. */
export async function cancelUpgrade(tx: Tx, clusterId: string): Promise<UpgradePhase | undefined> {
  const { rows } = await tx.query<{ phase: UpgradePhase }>(
    'select phase from upgrade where cluster_id = $1 for update',
    [clusterId],
  )
  await tx.query(`delete from upgrade where cluster_id = $1 and phase = 'planned'`, [clusterId])
  return rows[0]?.phase
}

/** The server runs with the new programs from its next start on. Does nothing if the upgrade was cancelled meanwhile. */
export async function startUpgrade(
  tx: Tx,
  clusterId: string,
  previous: RecordedToolchain,
  target: RecordedToolchain,
): Promise<void> {
  // An import that has begun meanwhile is not interrupted: the upgrade remains planned.
  if (await hasActiveImport(tx, clusterId)) return
  const { rowCount } = await tx.query(
    `update upgrade set phase = 'restarting', started_at = now(), previous = $2, target = $3, to_version = $4
     where cluster_id = $1 and phase = 'planned'`,
    [clusterId, JSON.stringify(previous), JSON.stringify(target), target.version],
  )
  if (rowCount === 1) await setToolchain(tx, clusterId, target)
}

async function setToolchain(tx: Tx, clusterId: string, toolchain: RecordedToolchain): Promise<void> {
  await tx.query('update cluster set toolchain = $2 where id = $1', [clusterId, JSON.stringify(toolchain)])
}

export async function markRestarted(tx: Tx, clusterId: string): Promise<void> {
  await tx.query('update upgrade set restarted_at = coalesce(restarted_at, now()) where cluster_id = $1', [clusterId])
}

export async function revertUpgrade(
  tx: Tx,
  clusterId: string,
  previous: RecordedToolchain,
  error: string,
): Promise<void> {
  await tx.query(`update upgrade set phase = 'reverting', error = $2 where cluster_id = $1`, [clusterId, error])
  await setToolchain(tx, clusterId, previous)
}

/** The time of the last check is cleared, so that the health is checked at once. */
export async function setUpgradeEnd(tx: Tx, clusterId: string, phase: 'done' | 'failed', error?: string) {
  await tx.query(
    'update upgrade set phase = $2, finished_at = now(), error = coalesce($3, error) where cluster_id = $1',
    [clusterId, phase, error ?? null],
  )
  await tx.query('update cluster set quota_checked_at = null where id = $1', [clusterId])
}

/** Records which version runs, and which one is installed if that is known. */
export async function setVersions(tx: Tx, clusterId: string, running: string, newest?: string): Promise<void> {
  await tx.query(
    `update cluster set toolchain = jsonb_set(toolchain, '{version}', to_jsonb($2::text)),
       newest_version = coalesce($3, newest_version)
     where id = $1 and (toolchain ->> 'version', newest_version) is distinct from ($2, coalesce($3, newest_version))`,
    [clusterId, running, newest ?? null],
  )
}

export async function insertMajorUpgrade(tx: Tx, clusterId: string, from: string, toMajor: string): Promise<void> {
  await tx.query(
    `insert into upgrade (cluster_id, kind, phase, from_version, to_version, started_at)
     values ($1, 'major', 'restoring', $2, $3, now())`,
    [clusterId, from, toMajor],
  )
}

export async function setUpgradeTarget(tx: Tx, clusterId: string, target: RecordedToolchain): Promise<void> {
  await tx.query(`update upgrade set phase = 'checking', target = $2, to_version = $3 where cluster_id = $1`, [
    clusterId,
    JSON.stringify(target),
    target.version,
  ])
}

/** A job that takes longer than this is stuck. */
const maxHours = 12

/** Records the stage of the job. Until the limit it counts as progress, from which the deadline of the cluster counts. */
export async function setUpgradeStage(db: Query, clusterId: string, phase: UpgradePhase): Promise<void> {
  await db.query(`update upgrade set phase = $2 where cluster_id = $1 and phase <> $2`, [clusterId, phase])
  await db.query(
    `update cluster set progress_at = now() from upgrade
     where id = $1 and cluster_id = $1 and started_at > now() - make_interval(hours => $2)
       and (progress_at is null or progress_at < now() - interval '20 seconds')`,
    [clusterId, maxHours],
  )
}

/** From now on the cluster is one of the new major version. */
export async function setMajorUpgraded(tx: Tx, clusterId: string, target: RecordedToolchain): Promise<void> {
  await tx.query(`update upgrade set phase = 'finishing' where cluster_id = $1`, [clusterId])
  await tx.query(
    `update cluster set pg_major = $2, toolchain = $3, newest_version = $4, progress_at = now() where id = $1`,
    [clusterId, target.major, JSON.stringify(target), target.version],
  )
}

export interface ClusterVersion {
  id: string
  name: string
  running: string
  newest: string
}

/** The versions of all ready clusters, for `berth doctor`. */
export async function listClusterVersions(db: Query): Promise<ClusterVersion[]> {
  const { rows } = await db.query<ClusterVersion>(
    `select id, name, toolchain ->> 'version' as running, coalesce(newest_version, toolchain ->> 'version') as newest
     from cluster where state = 'ready' and not scratch order by created_at, id`,
  )
  return rows
}

export async function setMaintenanceWindow(tx: Tx, clusterId: string, window: string | null): Promise<void> {
  await tx.query('update cluster set maintenance_window = $2 where id = $1', [clusterId, window])
  await markUndescribed(tx, clusterId)
  await enqueue(tx, 'cluster', clusterId)
}
