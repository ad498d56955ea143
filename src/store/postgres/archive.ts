import type { RestorePlan, Window } from '../../model/postgres/restore.ts'
import type { WalPiece } from '../../model/postgres/wal.ts'
import type { Micros } from '../../model/time.ts'
import type { Query, Tx } from '../db.ts'

/** The parent's backup and WAL that a restored cluster depends on until its first own backup. */
export interface ArchiveBase {
  backup: RestorePlan['backup']
  pieces: WalPiece[]
  /** The first restorable time: when the cluster was separated from its parent. */
  at: string
}

export interface Archive {
  clusterId: string
  epoch: number
  slot: string
  timeline: number
  startLsn: string
  startedAt: Micros
  endedAt: Micros | null
  latestAt: Micros | null
  latestLsn: string | null
  base: ArchiveBase | null
}

const columns = `cluster_id as "clusterId", epoch, slot, timeline, start_lsn::text as "startLsn", started_at as "startedAt",
  ended_at as "endedAt", latest_at as "latestAt", latest_lsn::text as "latestLsn", base`

export async function findCurrentArchive(db: Query, clusterId: string): Promise<Archive | undefined> {
  const { rows } = await db.query<Archive>({
    name: 'find-current-archive',
    text: `select ${columns} from archive where cluster_id = $1 and ended_at is null`,
    values: [clusterId],
  })
  return rows[0]
}

export async function listArchives(db: Query, clusterId: string): Promise<Archive[]> {
  const { rows } = await db.query<Archive>(`select ${columns} from archive where cluster_id = $1 order by epoch`, [
    clusterId,
  ])
  return rows
}

export interface NewEpoch {
  clusterId: string
  epoch: number
  slot: string
  timeline: number
  startLsn: string
  base: ArchiveBase | null
}

/** Ends the previous epoch, if any. Idempotent. */
export async function startEpoch(
  tx: Tx,
  { clusterId, epoch, slot, timeline, startLsn, base }: NewEpoch,
): Promise<void> {
  await tx.query(`update archive set ended_at = now() where cluster_id = $1 and ended_at is null and epoch < $2`, [
    clusterId,
    epoch,
  ])
  await tx.query(
    `insert into archive (cluster_id, epoch, slot, timeline, start_lsn, base) values ($1, $2, $3, $4, $5, $6)
     on conflict do nothing`,
    [clusterId, epoch, slot, timeline, startLsn, base === null ? null : JSON.stringify(base)],
  )
}

/** Ends all epochs of a deleted cluster. */
export async function endArchives(tx: Tx, clusterId: string): Promise<void> {
  await tx.query('update archive set ended_at = now() where cluster_id = $1 and ended_at is null', [clusterId])
}

export interface Sample {
  clusterId: string
  epoch: number
  at: Micros
  lsn: string
}

/**
 * Extends the recovery windows. Late samples never move a window back. One sample per minute is stored. The window of an
 * ended epoch does not change, because it may have been shortened to exclude missing WAL.
 */
export async function recordSamples(db: Query, samples: Sample[]): Promise<void> {
  const values = [
    samples.map((sample) => sample.clusterId),
    samples.map((sample) => sample.epoch),
    samples.map((sample) => Number(sample.at)),
    samples.map((sample) => sample.lsn),
  ]
  await db.query({
    name: 'record-samples',
    // The commit does not wait for the disk, because later samples supersede these.
    text: `with asynchronous as materialized (select set_config('synchronous_commit', 'off', true)),
           fresh as (
             select f.* from asynchronous,
               unnest($1::text[], $2::int[], $3::float8[], $4::pg_lsn[]) as f (cluster_id, epoch, micros, lsn)),
           timed as (
             select cluster_id, epoch, lsn, timestamptz 'epoch' + micros * interval '1 microsecond' as at from fresh),
           kept as (
             insert into sample (cluster_id, epoch, at, lsn)
             select timed.cluster_id, timed.epoch, timed.at, timed.lsn from timed
             join archive using (cluster_id, epoch)
             where archive.ended_at is null
               and (archive.latest_at is null or date_trunc('minute', archive.latest_at) < date_trunc('minute', timed.at))
             on conflict do nothing)
           update archive set latest_at = timed.at, latest_lsn = timed.lsn from timed
           where archive.cluster_id = timed.cluster_id and archive.epoch = timed.epoch and archive.ended_at is null
             and (archive.latest_at is null or archive.latest_at < timed.at)`,
    values,
  })
}

export interface ClusterToSample {
  id: string
  epoch: number
  timeline: number
  slot: string
}

export async function listClustersToSample(db: Query): Promise<ClusterToSample[]> {
  const { rows } = await db.query<ClusterToSample>({
    name: 'clusters-to-sample',
    text: `select cluster.id, archive.epoch, archive.timeline, archive.slot from cluster
           join archive on archive.cluster_id = cluster.id and archive.ended_at is null where cluster.state = 'ready'`,
    values: [],
  })
  return rows
}

/** An interval in which every time can be restored, and the archive epoch behind it. */
export interface RecoveryWindow extends Window {
  epoch: number
  timeline: number
  latestLsn: string
  base: ArchiveBase | null
}

/** Oldest first. */
export async function listWindows(db: Query, clusterId: string): Promise<RecoveryWindow[]> {
  const { rows } = await db.query<RecoveryWindow>(
    `select epoch, timeline, latest_lsn::text as "latestLsn", base, latest_at as latest, earliest_at as earliest
     from archive where cluster_id = $1 and earliest_at <= latest_at order by epoch`,
    [clusterId],
  )
  return rows
}

/** Whether there is any restorable time. */
export async function hasWindow(db: Query, clusterId: string): Promise<boolean> {
  return (await listWindows(db, clusterId)).length > 0
}

/** The windows of a cluster as one JSON column of [earliest, latest], oldest first. */
export const windowsColumn = `array(
  select json_build_array(earliest_at, latest_at) from archive
  where archive.cluster_id = cluster.id and earliest_at <= latest_at order by epoch) as windows`
