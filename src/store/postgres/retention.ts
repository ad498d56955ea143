import type { Query, Tx } from '../db.ts'
import { markUndescribed } from './cluster-describe.ts'
import { deleteDamage } from './damage.ts'

/** The newest backup before the recovery window; older ones are not needed for any time in the window. */
const edge = `edge as (
  select max(stopped_at) as at from backup
  where cluster_id = $1 and state = 'completed' and damage is null and stopped_at <= now() - interval '1 day' * $2)`

/**
 * Unpinned backups that may be removed: those not needed for the recovery window, and failed ones of the same age. With
 * `only`, checks and locks that single backup.
 */
export async function listExpiredBackups(db: Query, clusterId: string, days: number, only?: string): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>(
    `with ${edge}
     select backup.id from backup, edge
     where backup.cluster_id = $1 and ($3::text is null or backup.id = $3) and not backup.pinned
       and ((backup.state = 'completed' and backup.stopped_at < edge.at)
         or (backup.state = 'failed' and backup.state_since < now() - interval '1 day' * $2))
       and not exists (select 1 from pin where pin.cluster_id = backup.cluster_id and pin.label = backup.label)
     ${only === undefined ? '' : 'for update of backup'}`,
    [clusterId, days, only ?? null],
  )
  return rows.map((row) => row.id)
}

/** Marks pinned backups that are older than the window, so that only the WAL they need themselves is kept. */
export async function markPinnedAlone(db: Query, clusterId: string, days: number): Promise<void> {
  await db.query(
    `with ${edge}
     update backup set alone = true from edge
     where cluster_id = $1 and state = 'completed' and pinned and not alone and stopped_at < edge.at`,
    [clusterId, days],
  )
}

/** Whether own backups cover the retention period of a cluster that still depends on its parent. */
export async function isBaseExpired(db: Query, clusterId: string, days: number): Promise<boolean> {
  const { rows } = await db.query<{ isExpired: boolean }>(
    `with ${edge}
     select edge.at is not null and exists (
       select 1 from archive where cluster_id = $1 and base is not null) as "isExpired" from edge`,
    [clusterId, days],
  )
  return rows[0]!.isExpired
}

/** Takes effect when expired backups are removed the next time. */
export async function setRetention(tx: Tx, clusterId: string, days: number | null): Promise<void> {
  await tx.query('update cluster set retention_days = $2 where id = $1', [clusterId, days])
  await markUndescribed(tx, clusterId)
}

export interface ArchiveNeed {
  epoch: number
  hasEnded: boolean
  /** Whether a backup is running whose WAL position is not known yet. */
  isBusy: boolean
  /** WAL before this position is not needed; null when none of the epoch is. */
  fromLsn: string | null
  /** Ranges before `fromLsn` that are still needed. */
  kept: { from: string; to: string }[]
}

/** The WAL of each epoch that backups, pins or the dependency on a parent still need. */
export async function listArchiveNeeds(db: Query, clusterId: string): Promise<ArchiveNeed[]> {
  const { rows } = await db.query<ArchiveNeed>(
    `select archive.epoch, archive.ended_at is not null as "hasEnded",
       exists (select 1 from backup where backup.cluster_id = $1 and state in ('queued', 'running')) as "isBusy",
       least(
         (select min(start_lsn) from backup
          where backup.cluster_id = $1 and backup.epoch = archive.epoch and state = 'completed' and not alone),
         (select min(from_lsn) from pin where pin.cluster_id = $1 and pin.epoch = archive.epoch),
         case when archive.base is not null then archive.start_lsn end)::text as "fromLsn",
       array(
         select json_build_object('from', start_lsn, 'to', stop_lsn) from backup
         where backup.cluster_id = $1 and backup.epoch = archive.epoch and state = 'completed' and alone) as kept
     from archive where cluster_id = $1 order by archive.epoch`,
    [clusterId],
  )
  return rows
}

export async function removeEpoch(tx: Tx, clusterId: string, epoch: number): Promise<void> {
  await tx.query('delete from archive where cluster_id = $1 and epoch = $2 and ended_at is not null', [
    clusterId,
    epoch,
  ])
}

/** Deletes what is known of the backups of a deleted cluster. Returns false if they must be kept. */
export async function forgetBackups(tx: Tx, clusterId: string, keepDays: number | null): Promise<boolean> {
  await lockDeletedCluster(tx, clusterId)
  if (keepDays !== null && (await mustKeepDeleted(tx, clusterId, keepDays))) return false
  await deleteBackupRows(tx, clusterId)
  return true
}

/** Locks a deleted cluster whose backups are restored or deleted. Returns false if it is not a deleted one. */
export async function lockDeletedCluster(tx: Tx, clusterId: string): Promise<boolean> {
  const { rowCount } = await tx.query(`select 1 from cluster where id = $1 and state = 'deleted' for no key update`, [
    clusterId,
  ])
  return rowCount === 1
}

/** Whether the backups of a deleted cluster are within their retention period or still pinned. */
async function mustKeepDeleted(db: Query, clusterId: string, days: number): Promise<boolean> {
  const { rows } = await db.query<{ keep: boolean }>(
    `select coalesce(deleted_at > now() - interval '1 day' * $2, false)
       or exists (select 1 from pin where pin.cluster_id = cluster.id)
       or exists (select 1 from backup where backup.cluster_id = cluster.id and state = 'completed' and pinned) as keep
     from cluster where id = $1`,
    [clusterId, days],
  )
  return rows[0]?.keep ?? false
}

async function deleteBackupRows(tx: Tx, clusterId: string): Promise<void> {
  await tx.query('delete from archive where cluster_id = $1', [clusterId])
  await deleteDamage(tx, clusterId)
  await tx.query(
    `update backup set state = 'removed', state_since = now() where cluster_id = $1 and state <> 'removed'`,
    [clusterId],
  )
}

export async function markRetention(tx: Tx, clusterId: string): Promise<void> {
  await tx.query('update cluster set retention_at = now() where id = $1', [clusterId])
  // Drills and restores of damaged archives use samples of the recovery window only, which is shorter than a month.
  await tx.query(
    `delete from sample using stretch
     where stretch.id = stretch_id and stretch.cluster_id = $1 and at < now() - interval '31 days'`,
    [clusterId],
  )
}
