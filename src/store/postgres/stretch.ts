// The parts of an archive in which the clock of the source ran evenly and no WAL is missing, and the times in them.
import type { ArchiveBase, Pass, Window } from '../../model/postgres/restore.ts'
import type { Micros } from '../../model/time.ts'
import type { Query, Tx } from '../db.ts'

export interface ClockChange {
  step: Micros
  until: Micros
  since: Micros
}

export interface NewStretch {
  clusterId: string
  epoch: number
  fromLsn: string
  fromAt: Micros | null
  /** By how much the clock was changed, the latest time it can have shown before, and the earliest one since. */
  clock?: ClockChange | undefined
}

const toTime = (parameter: string) => `timestamptz 'epoch' + ${parameter}::bigint * interval '1 microsecond'`

/** Ends the current stretch of the cluster and starts another. */
export async function startStretch(tx: Tx, stretch: NewStretch): Promise<void> {
  await endStretches(tx, stretch.clusterId, stretch.clock?.until)
  await tx.query(
    `insert into stretch (cluster_id, epoch, from_lsn, from_at, begun_at, clock_step)
     values ($1, $2, $3, ${toTime('$4')}, coalesce(${toTime('$6')}, now()), $5::bigint * interval '1 microsecond')`,
    [
      stretch.clusterId,
      stretch.epoch,
      stretch.fromLsn,
      stretch.fromAt?.toString() ?? null,
      stretch.clock?.step.toString() ?? null,
      (stretch.clock?.since ?? stretch.fromAt)?.toString() ?? null,
    ],
  )
}

export async function endStretches(tx: Tx, clusterId: string, until?: Micros): Promise<void> {
  await tx.query(
    `update stretch set ended = true, until_at = greatest(latest_at, ${toTime('$2')}) where cluster_id = $1 and not ended`,
    [clusterId, until?.toString() ?? null],
  )
}

export interface Sample {
  stretchId: string
  at: Micros
  /** Every commit up to the time is before this position. */
  lsn: string
  /** Everything before this position was written by then. */
  beginLsn: string
}

/**
 * Extends the recovery windows. Late samples never move a window back. One sample per minute is stored. The window of an
 * ended stretch does not change, because it may have been shortened to exclude missing WAL.
 */
export async function recordSamples(db: Query, samples: Sample[]): Promise<void> {
  const values = [
    samples.map((sample) => sample.stretchId),
    samples.map((sample) => Number(sample.at)),
    samples.map((sample) => sample.lsn),
    samples.map((sample) => sample.beginLsn),
  ]
  await db.query({
    name: 'record-samples',
    // The commit does not wait for the disk, because later samples supersede these.
    text: `with asynchronous as materialized (select set_config('synchronous_commit', 'off', true)),
           fresh as (
             select f.* from asynchronous,
               unnest($1::bigint[], $2::float8[], $3::pg_lsn[], $4::pg_lsn[]) as f (id, micros, lsn, begin_lsn)),
           timed as (
             select id, lsn, begin_lsn, timestamptz 'epoch' + micros * interval '1 microsecond' as at from fresh),
           kept as (
             insert into sample (stretch_id, at, lsn, begin_lsn)
             select timed.id, timed.at, timed.lsn, timed.begin_lsn from timed join stretch using (id)
             where not stretch.ended
               and (stretch.latest_at is null or date_trunc('minute', stretch.latest_at) < date_trunc('minute', timed.at))
             on conflict do nothing)
           update stretch set latest_at = timed.at, latest_lsn = timed.lsn from timed
           where stretch.id = timed.id and not stretch.ended
             and (stretch.latest_at is null or stretch.latest_at < timed.at)`,
    values,
  })
}

/** Records by how much the clock of the source differs from that of the platform. */
export async function setClockOffset(db: Query, stretchId: string, offset: Micros): Promise<void> {
  await db.query(`update stretch set clock_offset = $2::bigint * interval '1 microsecond' where id = $1`, [
    stretchId,
    offset.toString(),
  ])
}

export interface ClusterToSample {
  id: string
  epoch: number
  slot: string
  timeline: number
  stretchId: string
  latestAt: Micros | null
  latestLsn: string | null
}

export async function listClustersToSample(db: Query): Promise<ClusterToSample[]> {
  const { rows } = await db.query<ClusterToSample>({
    name: 'clusters-to-sample',
    text: `select cluster.id, archive.epoch, archive.slot, archive.timeline, stretch.id::text as "stretchId",
             stretch.latest_at as "latestAt", stretch.latest_lsn::text as "latestLsn"
           from cluster
           join archive on archive.cluster_id = cluster.id and archive.ended_at is null
           join stretch on stretch.cluster_id = cluster.id and stretch.epoch = archive.epoch and not stretch.ended
           where cluster.state = 'ready'`,
    values: [],
  })
  return rows
}

/** The epochs in which the clock was changed. */
export async function listClockChanges(db: Query, clusterId: string): Promise<number[]> {
  const { rows } = await db.query<{ epoch: number }>(
    'select distinct epoch from stretch where cluster_id = $1 and clock_step is not null',
    [clusterId],
  )
  return rows.map(({ epoch }) => epoch)
}

export interface ClockProblem {
  /** The step at the beginning of the current stretch if it was noticed a short while ago, in microseconds. */
  step: number | null
  /** The source's clock minus that of the platform, in microseconds. */
  offset: number
}

export async function findClockProblem(
  db: Query,
  clusterId: string,
  reportedSeconds: number,
): Promise<ClockProblem | undefined> {
  const { rows } = await db.query<ClockProblem>({
    name: 'find-clock-problem',
    text: `select * from (
             select (extract(epoch from clock_offset) * 1000000)::float8 as offset, case
               when noticed_at > now() - interval '1 second' * $2 then extract(epoch from clock_step) * 1000000
               end::float8 as step
             from stretch where cluster_id = $1 and not ended) seen
           where step is not null or "offset" <> 0`,
    values: [clusterId, reportedSeconds],
  })
  return rows[0]
}

/** An interval in which every time can be restored, unless another one contains it too, and the WAL behind it. */
export interface RecoveryWindow extends Window {
  stretchId: string
  epoch: number
  timeline: number
  fromLsn: string
  latestLsn: string
  /** Backups that start before this position cannot be used, because WAL after them is missing. */
  runLsn: string
  /** Null if WAL between it and the window is missing. */
  base: ArchiveBase | null
}

/** The stretches of the cluster $1 with the position after the last missing WAL before each stretch. */
export const stretches = `(
  select *, coalesce(max(from_lsn) filter (where after_hole)
    over (partition by cluster_id, epoch order by from_lsn, id), '0/0') as run_lsn,
    max(latest_lsn) over (partition by cluster_id, epoch order by from_lsn, id) as reached_lsn
  from stretch where cluster_id = $1) stretch`

/** In the order of the WAL. */
export async function listWindows(db: Query, clusterId: string): Promise<RecoveryWindow[]> {
  const { rows } = await db.query<RecoveryWindow>(
    `select stretch.id::text as "stretchId", epoch, timeline, from_lsn::text as "fromLsn", latest_lsn::text as "latestLsn",
       run_lsn::text as "runLsn", case when run_lsn = '0/0' then base end as base,
       latest_at as latest, earliest_at as earliest
     from ${stretches} join archive using (cluster_id, epoch)
     where cluster_id = $1 and earliest_at <= latest_at order by epoch, from_lsn, stretch.id`,
    [clusterId],
  )
  return rows
}

/** The end of the current recovery window. */
export async function findLatest(db: Query, clusterId: string): Promise<Micros | undefined> {
  const { rows } = await db.query<{ at: Micros | null }>(
    'select latest_at as at from stretch where cluster_id = $1 and not ended',
    [clusterId],
  )
  return rows[0]?.at ?? undefined
}

/** Whether there is any restorable time. */
export async function hasWindow(db: Query, clusterId: string): Promise<boolean> {
  return (await listWindows(db, clusterId)).length > 0
}

/** WAL without a hole. */
export interface Run {
  epoch: number
  timeline: number
  runLsn: string
  /** The newest sample in it. */
  latest: Micros
  latestLsn: string
  base: ArchiveBase | null
}

/** The run that contains a position, or else the newest one. */
export async function findRun(
  db: Query,
  clusterId: string,
  at?: { epoch: number; lsn: string },
): Promise<Run | undefined> {
  const { rows } = await db.query<Run>(
    `select epoch, timeline, run_lsn::text as "runLsn", case when run_lsn = '0/0' then base end as base,
       coalesce(reached_lsn, from_lsn)::text as "latestLsn", coalesce(latest_at, from_at, begun_at) as latest
     from ${stretches} join archive using (cluster_id, epoch)
     where $2::int is null or (epoch = $2 and (from_lsn <= $3::pg_lsn or run_lsn = '0/0'))
     order by epoch desc, from_lsn desc, stretch.id desc limit 1`,
    [clusterId, at?.epoch ?? null, at?.lsn ?? null],
  )
  return rows[0]
}

export interface Range {
  from: string
  to: string
}

/** The positions between which a time of the window lies. */
export async function findRange(db: Query, window: RecoveryWindow, time: Micros): Promise<Range> {
  const { rows } = await db.query<Range>(
    `select coalesce(
         (select begin_lsn from sample where stretch_id = $1 and at <= ${toTime('$2')} order by at desc limit 1),
         $3::pg_lsn)::text as from,
       coalesce(
         (select lsn from sample where stretch_id = $1 and at >= ${toTime('$2')} order by at limit 1),
         $4::pg_lsn)::text as to`,
    [window.stretchId, time.toString(), window.fromLsn, window.latestLsn],
  )
  return rows[0]!
}

/**
 * Removes a range of missing or damaged WAL from the recovery windows: a stretch ends at the last sample before it, and
 * another one begins after it.
 */
export async function splitStretches(
  tx: Tx,
  clusterId: string,
  epoch: number,
  hole: { from: string; to: string },
): Promise<void> {
  const values = [clusterId, epoch, hole.from, hole.to]
  const { rows } = await tx.query<{ id: string; isOpen: boolean; goesOn: boolean }>(
    `select id::text, not ended as "isOpen",
       (not ended or latest_lsn > $4::pg_lsn) and $4::pg_lsn < 'FFFFFFFF/FFFFFFFF' as "goesOn" from stretch
     where cluster_id = $1 and epoch = $2 and from_lsn < $4::pg_lsn
       and (not ended or coalesce(latest_lsn, from_lsn) > $3::pg_lsn)
     order by from_lsn, id for update`,
    values,
  )
  for (const { id, isOpen, goesOn } of rows) {
    if (isOpen) await tx.query('update stretch set ended = true where id = $1', [id])
    if (goesOn) await copyAfterHole(tx, id, isOpen, hole.to)
    await noteCut(tx, id, goesOn, hole.to)
    await shorten(tx, id, hole.from)
  }
  // The WAL after the hole may begin with a stretch of its own.
  await tx.query(
    `update stretch set after_hole = true where id = (
       select id from stretch where cluster_id = $1 and epoch = $2 and from_lsn >= $4::pg_lsn order by from_lsn, id limit 1)
     and $3::pg_lsn < from_lsn`,
    values,
  )
}

async function copyAfterHole(tx: Tx, id: string, isOpen: boolean, lsn: string): Promise<void> {
  const { rows } = await tx.query<{ id: string }>(
    `insert into stretch
       (cluster_id, epoch, from_lsn, from_at, begun_at, latest_at, latest_lsn, ended, after_hole, clock_offset, until_at,
        continues, cut_at, cut_lsn, cut_until)
     select cluster_id, epoch, $2, first.at, coalesce(first.at, latest_at, begun_at),
       case when latest_lsn > $2::pg_lsn then latest_at end, case when latest_lsn > $2::pg_lsn then latest_lsn end,
       $3, true, clock_offset, until_at, true, cut_at, cut_lsn, cut_until
     from stretch left join lateral (
       select min(at) as at from sample where stretch_id = $1 and begin_lsn >= $2::pg_lsn) first on true
     where id = $1 returning id::text`,
    [id, lsn, !isOpen],
  )
  await tx.query('update sample set stretch_id = $2 where stretch_id = $1 and begin_lsn >= $3::pg_lsn', [
    id,
    rows[0]!.id,
    lsn,
  ])
}

/** Notes an end of the stretch that is in the hole. What was cut off before belongs to the part after the hole. */
async function noteCut(tx: Tx, id: string, goesOn: boolean, lsn: string): Promise<void> {
  await tx.query(
    `update stretch set (cut_at, cut_lsn, cut_until) = (
       select cut_at, cut_lsn, cut_until where cut_lsn is not null and not $2
       union all
       select latest_at, latest_lsn, until_at where (cut_lsn is null or $2) and latest_lsn <= $3::pg_lsn)
     where id = $1`,
    [id, goesOn, lsn],
  )
}

async function shorten(tx: Tx, id: string, lsn: string): Promise<void> {
  await tx.query('delete from sample where stretch_id = $1 and lsn > $2::pg_lsn', [id, lsn])
  await tx.query(
    `update stretch set latest_at = kept.at, latest_lsn = kept.lsn, until_at = null
     from (select 1) always left join lateral (
       select at, lsn from sample where stretch_id = $1 order by at desc limit 1) kept on true
     where id = $1`,
    [id],
  )
}

const untilAt = `case when ended then coalesce(until_at, latest_at, begun_at) end`

/** The times that the clock of the cluster went through, in the order of the WAL. */
export async function listPasses(db: Query, clusterId: string): Promise<Pass[]> {
  const { rows } = await db.query<Pass>(
    `select id::text as "stretchId", earliest_at as earliest, latest_at as latest, begun_at as from, ${untilAt} as until
     from stretch where cluster_id = $1 order by epoch, from_lsn, id`,
    [clusterId],
  )
  return rows
}

/** The same as one JSON column of [earliest, latest, from, until]. */
export const passesColumn = `array(
  select json_build_array(earliest_at, latest_at, begun_at, ${untilAt}) from stretch
  where stretch.cluster_id = cluster.id order by epoch, from_lsn, stretch.id) as passes`
