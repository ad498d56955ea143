import type { BackupPlace } from '../../model/postgres/damage.ts'
import type { Query, Tx } from '../db.ts'
import { recheckHours, setScrubbed } from './backup.ts'
import { stretches } from './stretch.ts'

export interface ScrubbedBackup {
  id: string
  label: string
  /** How far the WAL after it is verified; null while its own files are. */
  lsn: string | null
}

export interface Scrubs {
  /** The backup of the cluster that is being scrubbed. */
  running: ScrubbedBackup | null
  /** The next backup of the cluster to scrub. */
  due: ScrubbedBackup | null
  /** Whether no scrub runs on this host. */
  isFree: boolean
}

const isDue = `backup.state = 'completed' and scrub_started_at is null and case
  when damage is null then coalesce(verified_at, finished_at, created_at) < now() - interval '1 second' * $2
  else recheck_at <= now() end`

/**
 * Whether a scrub runs on this host. Scrubs of clusters that are no longer ready, and those without activity for a day,
 * do not count.
 */
const isScrubRunning = `exists (
  select 1 from backup reading join cluster on cluster.id = reading.cluster_id
  where reading.scrub_started_at > now() - interval '1 day' and reading.state = 'completed' and cluster.state = 'ready')`

export async function readScrubs(db: Query, clusterId: string, intervalSeconds: number): Promise<Scrubs> {
  const { rows } = await db.query<Scrubs>({
    name: 'read-scrubs',
    text: `select
             (select json_build_object('id', id, 'label', label, 'lsn', scrub_lsn) from backup
              where cluster_id = $1 and state = 'completed' and scrub_started_at is not null limit 1) as running,
             (select json_build_object('id', id, 'label', label, 'lsn', null) from backup
              where cluster_id = $1 and ${isDue}
              order by damage is null, coalesce(verified_at, finished_at, created_at) limit 1) as due,
             not ${isScrubRunning} as "isFree"`,
    values: [clusterId, intervalSeconds],
  })
  return rows[0]!
}

/**
 * Whether no other cluster with a due scrub has waited longer since its last one. Otherwise a cluster with many backups
 * would keep the turn. Unhealthy clusters do not count, because they may not start it.
 */
export async function isNextToScrub(db: Query, clusterId: string, intervalSeconds: number): Promise<boolean> {
  const { rowCount } = await db.query({
    name: 'find-longer-waiting-scrub',
    text: `with last as (
             select cluster_id, max(scrub_ended_at) as at from backup group by cluster_id)
           select 1 from cluster waiting
           left join last on last.cluster_id = waiting.id left join last own on own.cluster_id = $1
           where waiting.id <> $1 and waiting.state = 'ready' and waiting.health in ('ok', 'read_only')
             and not waiting.scratch and coalesce(last.at, '-infinity') < coalesce(own.at, '-infinity')
             and exists (select 1 from backup where backup.cluster_id = waiting.id and ${isDue}) limit 1`,
    values: [clusterId, intervalSeconds],
  })
  return rowCount === 0
}

// The key of an advisory lock; no other lock may use the same number.
const scrubLock = 0x73637275

/** Returns false when another scrub runs on this host, or the backup is being removed. */
export async function claimScrub(tx: Tx, id: string): Promise<boolean> {
  await tx.query('select pg_advisory_xact_lock($1)', [scrubLock])
  const { rowCount } = await tx.query(
    `update backup set scrub_started_at = now(), scrub_lsn = null where id = $1 and state = 'completed' and not ${isScrubRunning}`,
    [id],
  )
  return rowCount === 1
}

/**
 * Damage is recorded separately. A backup that is still damaged is verified again a day later, in case that somebody puts
 * the intact one back.
 */
export async function finishScrub(tx: Tx, id: string, isIntact: boolean): Promise<void> {
  if (isIntact) await setScrubbed(tx, id)
  await tx.query(
    `update backup set scrub_started_at = null, scrub_lsn = null, scrub_ended_at = now(), recheck_at = case
       when recheck_at is not null and not $2 then now() + interval '1 hour' * $3 end
     where id = $1`,
    [id, isIntact, recheckHours],
  )
}

/** Goes on with the WAL that follows the backup. That before the first backup belongs to the first one. */
export async function startLogScrub(tx: Tx, id: string): Promise<void> {
  await tx.query(
    `update backup set scrub_started_at = now(), scrub_lsn = case
       when archive.base is not null and not exists (
         select 1 from backup earlier where earlier.cluster_id = archive.cluster_id and earlier.epoch = archive.epoch
           and earlier.state = 'completed' and earlier.damage is null and earlier.start_lsn < backup.start_lsn)
       then archive.start_lsn else backup.start_lsn end
     from archive where backup.id = $1 and archive.cluster_id = backup.cluster_id and archive.epoch = backup.epoch`,
    [id],
  )
}

/** A scrub with progress is not taken for one without activity. */
export async function setScrubPosition(tx: Tx, id: string, lsn: string): Promise<void> {
  await tx.query('update backup set scrub_started_at = now(), scrub_lsn = $2 where id = $1', [id, lsn])
}

/** What is left to verify of the WAL up to the next backup, or up to the end of a backup that is kept by itself. */
export async function findLogToScrub(db: Query, id: string): Promise<NeededLog | undefined> {
  const { rows } = await db.query<NeededLog>(
    `select backup.epoch, archive.timeline, scrub_lsn::text as "fromLsn", until.lsn::text as "toLsn"
     from backup
     join archive on archive.cluster_id = backup.cluster_id and archive.epoch = backup.epoch,
     lateral (select case when alone then stop_lsn else coalesce(
       (select min(later.start_lsn) from backup later
        where later.cluster_id = backup.cluster_id and later.epoch = backup.epoch and later.state = 'completed'
          and later.damage is null and not later.alone and later.start_lsn > backup.start_lsn),
       (select max(latest_lsn) from stretch
        where stretch.cluster_id = backup.cluster_id and stretch.epoch = backup.epoch)) end as lsn) until
     where backup.id = $1 and scrub_lsn < until.lsn`,
    [id],
  )
  return rows[0]
}

const trustHours = 24

/** Whether it was recently verified by reading it from disk. The verification after the copy does not count. */
export async function isScrubbed(db: Query, { clusterId, label }: BackupPlace): Promise<boolean> {
  const { rows } = await db.query<{ fresh: boolean }>({
    name: 'is-scrubbed',
    text: `select exists (
             select 1 from backup where cluster_id = $1 and label = $2 and state = 'completed' and damage is null
               and scrubbed_at > now() - interval '1 hour' * $3) as fresh`,
    values: [clusterId, label, trustHours],
  })
  return rows[0]!.fresh
}

/** A part of the WAL that backups need for the recovery windows. */
export interface NeededLog {
  epoch: number
  timeline: number
  fromLsn: string
  toLsn: string
}

/** From the first usable backup of each run of WAL to its newest sample. */
export async function listNeededLog(db: Query, clusterId: string): Promise<NeededLog[]> {
  const { rows } = await db.query<NeededLog>(
    `select run.epoch, timeline, run.latest_lsn::text as "toLsn", coalesce(
         case when run_lsn = '0/0' and base is not null then start_lsn end,
         (select min(start_lsn) from backup
          where backup.cluster_id = $1 and backup.epoch = run.epoch and state = 'completed' and damage is null
            and not alone and backup.start_lsn >= run_lsn and backup.start_lsn < run.latest_lsn))::text as "fromLsn"
     from (
       select epoch, run_lsn, max(latest_lsn) as latest_lsn from ${stretches} group by epoch, run_lsn) run
     join archive on archive.cluster_id = $1 and archive.epoch = run.epoch
     where run.latest_lsn is not null order by run.epoch, run_lsn`,
    [clusterId],
  )
  return rows.filter(({ fromLsn }) => fromLsn !== null)
}
