import type { Cluster } from '../../model/postgres/cluster.ts'
import type { RestorePhase, RestorePlan } from '../../model/postgres/restore.ts'
import type { Micros } from '../../model/time.ts'
import type { Query, Tx } from '../db.ts'
import type { NewCluster } from './cluster.ts'

export interface Restore {
  clusterId: string
  sourceClusterId: string
  backupId: string | null
  pitrTime: Micros | null
  plan: RestorePlan | null
  phase: RestorePhase
  bytesDone: number
  bytesTotal: number | null
  replayedUntil: Micros | null
  verifiedAt: Micros | null
  purpose: 'restore' | 'fork' | 'undelete' | 'drill' | 'recover'
  /** Whether what is intact may be restored if the log is damaged. */
  acceptLoss: boolean
  /** What was lost, if the restore was planned with less than the source had. */
  loss: string | null
  /** Of a recovery: where the data directory is moved to; null if it is what an earlier attempt left. */
  aside: string | null
  swapped: boolean
  newEpoch: number | null
}

const columns = `cluster_id as "clusterId", source_cluster_id as "sourceClusterId", backup_id as "backupId",
  pitr_time as "pitrTime", plan, phase, bytes_done as "bytesDone", bytes_total as "bytesTotal",
  replayed_until as "replayedUntil", verified_at as "verifiedAt", purpose,
  accept_loss as "acceptLoss", loss, aside, swapped, new_epoch as "newEpoch"`

export interface NewRestore {
  clusterId: string
  sourceClusterId: string
  backupId: string | null
  pitrTime: Micros | null
  plan: RestorePlan | null
  purpose: Restore['purpose']
  acceptLoss?: boolean
}

export async function insertRestore(tx: Tx, restore: NewRestore): Promise<void> {
  await tx.query(
    `insert into restore (cluster_id, source_cluster_id, backup_id, pitr_time, plan, purpose, accept_loss)
     values ($1, $2, $3, timestamptz 'epoch' + $4::bigint * interval '1 microsecond', $5, $6, $7)`,
    [
      restore.clusterId,
      restore.sourceClusterId,
      restore.backupId,
      restore.pitrTime === null ? null : restore.pitrTime.toString(),
      restore.plan === null ? null : JSON.stringify(restore.plan),
      restore.purpose,
      restore.acceptLoss ?? false,
    ],
  )
}

export async function findRestore(db: Query, clusterId: string): Promise<Restore | undefined> {
  const { rows } = await db.query<Restore>({
    name: 'find-restore',
    text: `select ${columns} from restore where cluster_id = $1`,
    values: [clusterId],
  })
  return rows[0]
}

/** What was copied and replayed by another plan does not count. */
export async function setRestorePlan(tx: Tx, clusterId: string, plan: RestorePlan): Promise<void> {
  await tx.query(
    `update restore set plan = $2, bytes_done = 0, bytes_total = null, bytes_verified = 0, replayed_until = null,
       replayed_lsn = null where cluster_id = $1`,
    [clusterId, JSON.stringify(plan)],
  )
}

export async function setRestoreLoss(tx: Tx, clusterId: string, loss: string): Promise<void> {
  await tx.query('update restore set loss = $2 where cluster_id = $1', [clusterId, loss])
}

export interface RestoreProgress {
  phase: RestorePhase
  bytesDone?: number
  bytesTotal?: number
  bytesVerified?: number
  /** A timestamp as printed by PostgreSQL. */
  replayedUntil?: string | null
  replayedLsn?: string | null
}

/**
 * Any change counts as progress and restarts the deadline of the cluster's state. Returns how often less was done than before:
 * after an interruption the copy begins again, and the replay at an earlier position. The commit does not wait for the
 * disk, because the next step reports the progress again.
 */
export async function setRestoreProgress(db: Query, clusterId: string, progress: RestoreProgress): Promise<number> {
  const { rows } = await db.query<{ setbacks: number }>(
    `with asynchronous as materialized (select set_config('synchronous_commit', 'off', true)),
     seen as (
       select coalesce($3::bigint, bytes_done) as bytes_done, coalesce($4::bigint, bytes_total) as bytes_total,
         coalesce($5::timestamptz, replayed_until) as replayed_until, coalesce($7::pg_lsn, replayed_lsn) as replayed_lsn,
         coalesce($3 < bytes_done or $7::pg_lsn < replayed_lsn, false) as is_setback,
         case when $3 < bytes_done then coalesce($6::bigint, 0) else greatest(bytes_verified, $6) end as bytes_verified
       from restore, asynchronous where cluster_id = $1),
     moved as (
       update restore set phase = $2, bytes_done = seen.bytes_done, bytes_total = seen.bytes_total,
         replayed_until = seen.replayed_until, bytes_verified = seen.bytes_verified, replayed_lsn = seen.replayed_lsn,
         setbacks = setbacks + seen.is_setback::int
       from seen
       where cluster_id = $1
         and (phase, restore.bytes_done, restore.replayed_until, restore.bytes_verified, restore.replayed_lsn)
           is distinct from ($2, seen.bytes_done, seen.replayed_until, seen.bytes_verified, seen.replayed_lsn)
       returning cluster_id),
     noted as (update cluster set progress_at = now() from moved where id = cluster_id)
     select setbacks + is_setback::int as setbacks from restore, seen where cluster_id = $1`,
    [
      clusterId,
      progress.phase,
      progress.bytesDone ?? null,
      progress.bytesTotal ?? null,
      progress.replayedUntil ?? null,
      progress.bytesVerified ?? null,
      progress.replayedLsn ?? null,
    ],
  )
  return rows[0]?.setbacks ?? 0
}

export interface Pin {
  clusterId: string
  /** Empty when only WAL is pinned. */
  label: string
  epoch: number
  fromLsn: string
}

/** The pins that protect a plan's backup and WAL from retention. */
export function pinsOf(plan: Pick<RestorePlan, 'backup' | 'pieces'>): Pin[] {
  const { backup, pieces } = plan
  return pieces.map(({ clusterId, epoch }, index) => ({
    clusterId,
    label: clusterId === backup.clusterId && index === 0 ? backup.label : '',
    epoch,
    fromLsn: index === 0 ? backup.startLsn : '0/0',
  }))
}

export async function insertPins(tx: Tx, holderId: string, pins: Pin[]): Promise<void> {
  await tx.query(
    `insert into pin (holder_id, cluster_id, label, epoch, from_lsn)
     select $1, * from unnest($2::text[], $3::text[], $4::int[], $5::pg_lsn[]) on conflict do nothing`,
    [
      holderId,
      pins.map(({ clusterId }) => clusterId),
      pins.map(({ label }) => label),
      pins.map(({ epoch }) => epoch),
      pins.map(({ fromLsn }) => fromLsn),
    ],
  )
}

export async function releasePins(tx: Query, holderId: string): Promise<void> {
  await tx.query('delete from pin where holder_id = $1', [holderId])
}

export interface RestoreEnd {
  isVerified: boolean
  bytes: number | undefined
  /** A timestamp as printed by PostgreSQL. */
  replayedUntil: string | null
}

/** Also sets the final progress, because a small restore may finish before any progress was recorded. */
export async function setRestoreDone(tx: Tx, clusterId: string, end: RestoreEnd): Promise<void> {
  await tx.query(
    `update restore set phase = 'done', bytes_done = coalesce($3, bytes_total, bytes_done),
       bytes_total = coalesce($3, bytes_total), replayed_until = coalesce($4, replayed_until),
       verified_at = case when $2 then now() end where cluster_id = $1`,
    [clusterId, end.isVerified, end.bytes ?? null, end.replayedUntil],
  )
}

/** The plan by which a ready cluster was restored, if the checksums of its backup are not verified yet. */
export async function findUnverifiedPlan(db: Query, clusterId: string): Promise<RestorePlan | undefined> {
  const { rows } = await db.query<{ plan: RestorePlan }>({
    name: 'find-unverified-plan',
    text: `select plan from restore where cluster_id = $1 and phase = 'done' and verified_at is null`,
    values: [clusterId],
  })
  return rows[0]?.plan
}

export async function setRestoreVerified(tx: Tx, clusterId: string): Promise<void> {
  await tx.query('update restore set verified_at = now() where cluster_id = $1', [clusterId])
  await releaseUnneeded(tx, clusterId)
}

/** Removes the dependency on the parent. */
export async function releaseBase(tx: Tx, clusterId: string): Promise<void> {
  await tx.query('update archive set base = null where cluster_id = $1 and base is not null', [clusterId])
  await releaseUnneeded(tx, clusterId)
}

/** Keeps the pins of a cluster that depends on its parent, also if it is deleted and can be undeleted. */
export async function releaseUnneeded(tx: Tx, clusterId: string): Promise<void> {
  const { rows } = await tx.query(
    `select 1 from archive where cluster_id = $1 and base is not null
     union all
     select 1 from restore join cluster on cluster.id = restore.cluster_id
     where cluster_id = $1 and verified_at is null and failure is null and state not in ('deleting', 'deleted')`,
    [clusterId],
  )
  if (rows.length === 0) await releasePins(tx, clusterId)
}

/** The settings that a restored cluster takes from its source. */
export function inherited(source: Cluster): Omit<NewCluster, 'id' | 'name'> {
  return {
    orgId: source.orgId,
    plan: source.plan,
    pgMajor: source.pgMajor,
    diskSizeGb: source.diskSizeGb,
    region: source.region,
    postgisEnabled: source.postgisEnabled,
    extensions: source.extensions,
    poolMode: source.poolMode,
    synchronousArchive: source.synchronousArchive,
    toolchain: source.toolchain,
    drillQuery: source.drillQuery,
    retentionDays: source.retentionDays,
    maintenanceWindow: source.maintenanceWindow,
  }
}
