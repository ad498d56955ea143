import { newId } from '../../model/ids.ts'
import type { Backup } from '../../model/postgres/backup.ts'
import { labelTime, newLabel } from '../../model/postgres/restore.ts'
import { nowMicros } from '../../model/time.ts'
import { commitWithoutDisk, type Query, type Tx } from '../db.ts'
import { enqueue } from '../work.ts'
import { markUndescribed } from './cluster-describe.ts'

const columns = `id, cluster_id as "clusterId", label, state, state_since as "stateSince", progress_at as "progressAt", type,
  epoch, timeline, start_lsn::text as "startLsn", stop_lsn::text as "stopLsn", created_at as "createdAt",
  started_at as "startedAt", stopped_at as "stoppedAt", finished_at as "finishedAt", size_bytes as "sizeBytes", pinned,
  verified_at as "verifiedAt", damage`

async function insertBackup(
  tx: Tx,
  id: string,
  clusterId: string,
  label: string,
  requested: boolean,
): Promise<boolean> {
  const { rowCount } = await tx.query(
    `insert into backup (id, cluster_id, label, requested) values ($1, $2, $3, $4)
     on conflict (cluster_id) where state in ('queued', 'running') do nothing`,
    [id, clusterId, label, requested],
  )
  return rowCount === 1
}

/** Returns false when one is queued or running. One that a caller requested counts towards the quota. */
export async function queueBackup(tx: Tx, clusterId: string, requested = false): Promise<boolean> {
  const id = newId()
  if (!(await insertBackup(tx, id, clusterId, await nextLabel(tx, clusterId), requested))) return false
  await enqueue(tx, 'backup', id)
  return true
}

/** Labels have a resolution of one second, so a second backup within the same second gets the next label. */
async function nextLabel(tx: Tx, clusterId: string): Promise<string> {
  const last = labelTime((await lastLabel(tx, clusterId)) ?? '') ?? 0n
  const now = nowMicros()
  return newLabel(last / 1_000_000n >= now / 1_000_000n ? last + 1_000_000n : now)
}

export async function loadBackup(db: Query, id: string): Promise<Backup | undefined> {
  const { rows } = await db.query<Backup>(`select ${columns} from backup where id = $1`, [id])
  return rows[0]
}

/** Newest first, without removed backups. */
export async function listBackups(db: Query, clusterId: string): Promise<(Backup & { failure: string | null })[]> {
  const { rows } = await db.query<Backup & { failure: string | null }>(
    `select ${columns}, case when state = 'failed' then (
       select note from event where kind = 'backup' and resource_id = backup.id and to_state = 'failed'
       order by event.id desc limit 1) end as failure
     from backup where cluster_id = $1 and state not in ('removing', 'removed') order by label desc`,
    [clusterId],
  )
  return rows
}

/** The failure of the last finished backup, unless a recent enough backup succeeded. */
export async function findBackupFailure(
  db: Query,
  clusterId: string,
  intervalSeconds: number,
): Promise<{ label: string; failure: string } | undefined> {
  const { rows } = await db.query<{ label: string; failure: string }>(
    `select label, (
       select note from event where kind = 'backup' and resource_id = last.id and to_state = 'failed'
       order by event.id desc limit 1) as failure
     from (
       select id, label, state from backup where cluster_id = $1 and state in ('completed', 'failed')
       order by label desc limit 1) last
     where state = 'failed' and not exists (
       select 1 from backup where cluster_id = $1 and state = 'completed' and damage is null
         and started_at > now() - interval '1 second' * $2)`,
    [clusterId, intervalSeconds],
  )
  return rows[0]
}

const byLabel = `select ${columns} from backup where cluster_id = $1 and label = $2 and state not in ('removing', 'removed')`

export async function findBackupByLabel(db: Query, clusterId: string, label: string): Promise<Backup | undefined> {
  return (await db.query<Backup>(byLabel, [clusterId, label])).rows[0]
}

/** Locks the backup against removal until the transaction ends. */
export async function lockBackupByLabel(tx: Tx, clusterId: string, label: string): Promise<Backup | undefined> {
  return (await tx.query<Backup>(`${byLabel} for share`, [clusterId, label])).rows[0]
}

export interface Usable {
  epoch: number
  /** WAL before this position is missing. */
  runLsn: string
  endLsn: string
  /** If it ended after this position, it must have ended by this time. */
  stopped?: { by: bigint; after: string }
}

/** The newest intact backup of an epoch that ended by a position, locked against removal until the transaction ends. */
export async function findUsableBackup(
  db: Query,
  clusterId: string,
  { epoch, runLsn, endLsn, stopped }: Usable,
): Promise<Backup | undefined> {
  const { rows } = await db.query<Backup>(
    `select ${columns} from backup
     where cluster_id = $1 and epoch = $2 and state = 'completed' and damage is null and not alone
       and start_lsn >= $3::pg_lsn and stop_lsn <= $4::pg_lsn
       and ($5::bigint is null or stop_lsn <= $6::pg_lsn
         or stopped_at <= timestamptz 'epoch' + $5::bigint * interval '1 microsecond')
     order by backup.stop_lsn desc, backup.label desc limit 1 for share`,
    [clusterId, epoch, runLsn, endLsn, stopped?.by.toString() ?? null, stopped?.after ?? null],
  )
  return rows[0]
}

async function lastLabel(db: Query, clusterId: string): Promise<string | undefined> {
  const { rows } = await db.query<{ label: string }>(
    'select label from backup where cluster_id = $1 order by label desc limit 1',
    [clusterId],
  )
  return rows[0]?.label
}

export async function countRunningBackups(db: Query): Promise<number> {
  const { rows } = await db.query<{ running: number }>(`select count(*) as running from backup where state = 'running'`)
  return rows[0]!.running
}

export async function setBackupStarted(tx: Tx, id: string, epoch: number): Promise<void> {
  await tx.query('update backup set started_at = now(), progress_at = now(), epoch = $2 where id = $1', [id, epoch])
}

/** The commit does not wait for the disk, because the next step reports the progress again. */
export async function setBackupProgress(tx: Tx, id: string, bytes: number, bytesVerified: number): Promise<void> {
  await Promise.all([
    commitWithoutDisk(tx),
    tx.query(
      `update backup set size_bytes = $2, bytes_verified = $3, progress_at = case
         when (size_bytes, bytes_verified) is distinct from ($2, $3) then now() else progress_at end where id = $1`,
      [id, bytes, bytesVerified],
    ),
  ])
}

export interface BackupFacts {
  timeline: number
  startLsn: string
  stopLsn: string
  /** The source's clock at the end of the backup, in RFC 3339. */
  stoppedAt: string
  sizeBytes: number
}

export async function setBackupFacts(tx: Tx, id: string, facts: BackupFacts): Promise<void> {
  await tx.query(
    `update backup set timeline = $2, start_lsn = $3, stop_lsn = $4, stopped_at = $5, size_bytes = $6,
       finished_at = now(), verified_at = now() where id = $1`,
    [id, facts.timeline, facts.startLsn, facts.stopLsn, facts.stoppedAt, facts.sizeBytes],
  )
}

/** Undefined unless the backup is completed. Locks the cluster first, in the same order as its deletion. */
export async function setPinned(
  tx: Tx,
  clusterId: string,
  label: string,
  pinned: boolean,
): Promise<Backup | undefined> {
  await markUndescribed(tx, clusterId)
  const { rows } = await tx.query<Backup>(
    `update backup set pinned = $3 where cluster_id = $1 and label = $2 and state = 'completed' returning ${columns}`,
    [clusterId, label, pinned],
  )
  return rows[0]
}

/** After this time a damaged backup is verified again. */
export const recheckHours = 24

/** Damage of the WAL that it needs remains. Does nothing if damage was found since the scrub began. */
export async function setScrubbed(tx: Tx, id: string): Promise<void> {
  await tx.query(
    `update backup set scrubbed_at = now(), verified_at = now(),
       damage = case when recheck_at is null then damage end,
       damaged_at = case when recheck_at is null then damaged_at end
     where id = $1 and scrub_started_at is not null`,
    [id],
  )
}

/** The input of the backup schedule. */
export interface BackupSchedule {
  active: boolean
  /**
   * Seconds since the newest completed backup of the current epoch started; null when there is none, or none that is newer
   * than the last discovered damage.
   */
  ageSeconds: number | null
  /** Failed attempts since then, and seconds since the last of them. */
  failures: number
  failedSeconds: number | null
}

export async function readSchedule(db: Query, clusterId: string, epoch: number): Promise<BackupSchedule> {
  const { rows } = await db.query<BackupSchedule>(
    `with done as (
       select max(started_at) as at from backup
       where cluster_id = $1 and epoch = $2 and state = 'completed' and damage is null
         and start_lsn >= (select coalesce(max(from_lsn), '0/0') from stretch
           where stretch.cluster_id = $1 and stretch.epoch = $2 and after_hole)
         and not exists (
         select 1 from backup damaged
         where damaged.cluster_id = $1 and damaged.state = 'completed' and damaged.damaged_at >= backup.started_at
         union all select 1 from damage where damage.cluster_id = $1 and found_at >= backup.started_at))
     select exists (select 1 from backup where cluster_id = $1 and state in ('queued', 'running')) as active,
       extract(epoch from now() - done.at)::float8 as "ageSeconds",
       count(failed.id) as failures, extract(epoch from now() - max(failed.state_since))::float8 as "failedSeconds"
     from done left join backup failed
       on failed.cluster_id = $1 and failed.state = 'failed' and (done.at is null or failed.created_at > done.at)
     group by done.at`,
    [clusterId, epoch],
  )
  return rows[0]!
}
