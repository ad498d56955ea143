// The recovery of a cluster in place, from its own backups and WAL. Its progress is that of a restore from itself.
import type { RestorePlan } from '../../model/postgres/restore.ts'
import type { Micros } from '../../model/time.ts'
import type { Query, Tx } from '../db.ts'
import { insertPins, pinsOf } from './restore.ts'
import { findRestorableRun } from './restore-plan.ts'
import { findRun } from './stretch.ts'

/** Replaces what was recorded about an earlier restore or recovery of the cluster. */
export async function startRecovery(
  tx: Tx,
  clusterId: string,
  acceptLoss: boolean,
  aside: string | null,
): Promise<void> {
  await tx.query(
    `insert into restore (cluster_id, source_cluster_id, purpose, accept_loss, aside) values ($1, $1, 'recover', $2, $3)
     on conflict (cluster_id) do update set source_cluster_id = excluded.source_cluster_id, purpose = 'recover',
       accept_loss = excluded.accept_loss, aside = excluded.aside, backup_id = null, pitr_time = null, plan = null,
       phase = 'waiting', bytes_done = 0, bytes_total = null, bytes_verified = 0, replayed_until = null,
       replayed_lsn = null, verified_at = null, swapped = false, new_epoch = null, failure = null, setbacks = 0`,
    [clusterId, acceptLoss, aside],
  )
  // Otherwise the deadline would count from the progress of an earlier restore.
  await tx.query('update cluster set progress_at = null where id = $1', [clusterId])
}

export async function acceptLoss(tx: Tx, clusterId: string): Promise<void> {
  await tx.query('update restore set accept_loss = true where cluster_id = $1', [clusterId])
}

export async function setRecoveryPlan(tx: Tx, clusterId: string, plan: RestorePlan): Promise<void> {
  await tx.query(
    `update restore set plan = $2, new_epoch = (select max(epoch) + 1 from archive where cluster_id = $1)
     where cluster_id = $1`,
    [clusterId, JSON.stringify(plan)],
  )
  await insertPins(tx, clusterId, pinsOf(plan))
}

/** The data directory is out of the way, so that the copy of a backup can take its place. */
export async function setSwapped(tx: Tx, clusterId: string): Promise<void> {
  await tx.query('update restore set swapped = true where cluster_id = $1', [clusterId])
}

/** Starts over with another plan. What the last attempt made is discarded. */
export async function restartRecovery(tx: Tx, clusterId: string): Promise<void> {
  await tx.query(
    `update restore set plan = null, aside = null, swapped = false, phase = 'waiting', bytes_done = 0, bytes_total = null,
       bytes_verified = 0, replayed_until = null, replayed_lsn = null where cluster_id = $1`,
    [clusterId],
  )
}

export async function setRecoveryRefused(tx: Tx, clusterId: string, reason: string): Promise<void> {
  await tx.query(`update restore set phase = 'failed', failure = $2 where cluster_id = $1`, [clusterId, reason])
}

export async function hasBeenReady(db: Query, clusterId: string): Promise<boolean> {
  const { rowCount } = await db.query(
    `select 1 from event where kind = 'cluster' and resource_id = $1 and to_state = 'ready' limit 1`,
    [clusterId],
  )
  return rowCount! > 0
}

export interface ArchiveLoss {
  /** The last time that can be recovered. */
  until: Micros
  reason: string
}

/** What a recovery would lose because the archive cannot be restored up to its end. */
export async function findLoss(db: Query, clusterId: string): Promise<ArchiveLoss | undefined> {
  const run = await findRestorableRun(db, clusterId)
  const newest = await findRun(db, clusterId)
  if (!run || !newest) return undefined
  const hole = await findHoleAfter(db, clusterId, run.epoch, run.latestLsn)
  if (hole) return { until: run.latest, reason: hole.reason }
  if (newest.epoch === run.epoch && newest.runLsn === run.runLsn) return undefined
  return { until: run.latest, reason: 'archiving restarted since, and no backup has completed after that' }
}

/** The first hole at or after a position of an epoch. */
export async function findHoleAfter(
  db: Query,
  clusterId: string,
  epoch: number,
  lsn: string,
): Promise<{ fromLsn: string; reason: string } | undefined> {
  const { rows } = await db.query<{ fromLsn: string; reason: string }>(
    `select from_lsn::text as "fromLsn", reason from damage
     where cluster_id = $1 and epoch = $2 and to_lsn > $3::pg_lsn order by from_lsn limit 1`,
    [clusterId, epoch, lsn],
  )
  return rows[0]
}
