// Damage that has been repaired: intact files were put back in place of missing or damaged ones.
import type { ArchiveHole } from '../../model/postgres/damage.ts'
import type { Query, Tx } from '../db.ts'
import { lockState } from '../transition.ts'
import { requestCheck } from './cluster.ts'
import { neededWalDamage } from './damage.ts'

export interface KnownHole extends ArchiveHole {
  id: string
}

/** Bounds how much is read at a time; the others follow. */
const maxHoles = 16
const recheckSeconds = 60

/** The holes that were not looked at for a while. */
export async function listHolesToCheck(db: Query, clusterId: string): Promise<KnownHole[]> {
  const { rows } = await db.query<KnownHole>({
    name: 'list-holes-to-check',
    text: `select id::text, cluster_id as "clusterId", epoch, timeline, from_lsn::text as "fromLsn", to_lsn::text as "toLsn",
             kind, reason
           from damage where cluster_id = $1 and checked_at < now() - interval '1 second' * $2
           order by checked_at, damage.id limit $3`,
    values: [clusterId, recheckSeconds, maxHoles],
  })
  return rows
}

export async function setHoleChecked(db: Query, id: string): Promise<void> {
  await db.query('update damage set checked_at = now() where id = $1', [id])
}

/** Forgets a hole whose files are intact again: the recovery windows and the backups that it took come back. */
export async function forgetHole(tx: Tx, hole: KnownHole): Promise<void> {
  const { id, clusterId, epoch, fromLsn, toLsn, reason } = hole
  const state = await lockState(tx, 'cluster', clusterId)
  const { rowCount } = await tx.query('delete from damage where id = $1', [id])
  if (rowCount === 0 || state === undefined) return
  await tx.query(
    `update backup set damage = null, damaged_at = null
     where cluster_id = $1 and epoch = $2 and damage = $5 and start_lsn < $4::pg_lsn and stop_lsn > $3::pg_lsn
       and not exists (
         select 1 from damage where damage.cluster_id = $1 and damage.epoch = $2
           and from_lsn < stop_lsn and to_lsn > start_lsn)`,
    [clusterId, epoch, fromLsn, toLsn, neededWalDamage(reason)],
  )
  while (await rejoinOne(tx, clusterId, epoch));
  await extendCut(tx, clusterId, epoch)
  await noteRepair(tx, clusterId, state, `the archive is intact again, where before: ${reason}`)
}

/** Undoes one consequence of holes that are gone: a stretch goes on in the next one, or a backup before it can be used. */
async function rejoinOne(tx: Tx, clusterId: string, epoch: number): Promise<boolean> {
  const { rows } = await tx.query<{ id: string; before: string | null }>(
    `select id::text, case when continues then before end::text as before from (
       select id, from_lsn, after_hole, continues, lag(id) over log as before,
         coalesce(lag(latest_lsn) over log, lag(from_lsn) over log, '0/0') as reached
       from stretch where cluster_id = $1 and epoch = $2 window log as (order by from_lsn, id)) stretch
     where after_hole and not exists (
       select 1 from damage where damage.cluster_id = $1 and damage.epoch = $2
         and damage.from_lsn < stretch.from_lsn and damage.to_lsn > reached)
     order by from_lsn, id limit 1`,
    [clusterId, epoch],
  )
  const [found] = rows
  if (!found) return false
  if (found.before === null) await tx.query('update stretch set after_hole = false where id = $1', [found.id])
  else await join(tx, found.before, found.id)
  return true
}

async function join(tx: Tx, id: string, next: string): Promise<void> {
  await tx.query('update sample set stretch_id = $1 where stretch_id = $2', [id, next])
  const { rows } = await tx.query(
    `delete from stretch where id = $1 returning latest_at::text as at, latest_lsn::text as lsn, until_at::text as until, ended,
       clock_offset::text as "offset", cut_at::text as "cutAt", cut_lsn::text as "cutLsn", cut_until::text as "cutUntil"`,
    [next],
  )
  const { at, lsn, until, ended, offset, cutAt, cutLsn, cutUntil } = rows[0]!
  await tx.query(
    `update stretch set latest_at = coalesce($2, latest_at), latest_lsn = coalesce($3, latest_lsn), until_at = $4,
       ended = $5, clock_offset = $9, cut_at = case when $3::pg_lsn is null then coalesce($6, cut_at) else $6 end,
       cut_lsn = case when $3::pg_lsn is null then coalesce($7, cut_lsn) else $7 end,
       cut_until = case when $3::pg_lsn is null and $7::pg_lsn is null then cut_until else $8 end
     where id = $1`,
    [id, at, lsn, until, ended, cutAt, cutLsn, cutUntil, offset],
  )
}

/** Gives stretches that ended in a hole their end back. */
async function extendCut(tx: Tx, clusterId: string, epoch: number): Promise<void> {
  await tx.query(
    `update stretch set latest_at = cut_at, latest_lsn = cut_lsn, until_at = cut_until,
       cut_at = null, cut_lsn = null, cut_until = null
     where cluster_id = $1 and epoch = $2 and cut_lsn is not null and not exists (
       select 1 from damage where damage.cluster_id = $1 and damage.epoch = $2
         and damage.from_lsn < cut_lsn and damage.to_lsn > coalesce(latest_lsn, stretch.from_lsn))`,
    [clusterId, epoch],
  )
}

/** The health is checked at once. */
export async function noteRepair(tx: Tx, clusterId: string, state: string, note: string): Promise<void> {
  await tx.query(
    `insert into event (kind, resource_id, from_state, to_state, event, note) values ('cluster', $1, $2, '', 'repair', $3)`,
    [clusterId, state, note],
  )
  if (state === 'ready') await requestCheck(tx, clusterId)
}

export interface DamagedBackup {
  id: string
  label: string
  /** Whether it was missing at the last look. */
  isMissing: boolean
}

/** Those whose own files are damaged. */
export async function listDamagedBackups(db: Query, clusterId: string): Promise<DamagedBackup[]> {
  const { rows } = await db.query<DamagedBackup>({
    name: 'list-damaged-backups',
    text: `select id, label, recheck_at = 'infinity' as "isMissing" from backup
           where cluster_id = $1 and state = 'completed' and damage is not null and recheck_at is not null`,
    values: [clusterId],
  })
  return rows
}

/** A missing backup is verified again once it is there. */
export async function setMissing(db: Query, id: string, isMissing: boolean): Promise<void> {
  await db.query(
    `update backup set recheck_at = case when $2 then 'infinity' else now() end where id = $1 and recheck_at is not null`,
    [id, isMissing],
  )
}
