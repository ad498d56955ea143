// Backups and archived WAL that were found missing or damaged by a restore, a drill, a scrub or an adoption.
import type { ArchiveHole, BackupPlace, Damage } from '../../model/postgres/damage.ts'
import { lastLsn, parseLsn } from '../../model/postgres/wal.ts'
import type { Query, Tx } from '../db.ts'
import { lockState } from '../transition.ts'
import { enqueue } from '../work.ts'
import { queueBackup, recheckHours } from './backup.ts'
import { splitStretches } from './stretch.ts'

/**
 * Records damage, so that the backup or WAL is not used again. The recovery windows are corrected, the health of the
 * cluster shows the reason, and a new backup is made at once. Recording the same damage again changes nothing.
 */
export async function recordDamage(tx: Tx, damage: Damage): Promise<void> {
  const id = 'wal' in damage ? damage.wal.clusterId : damage.backup.clusterId
  const state = await lockState(tx, 'cluster', id)
  const isNew =
    'wal' in damage ? await recordHole(tx, damage.wal) : await recordBackup(tx, damage.backup, damage.reason)
  if (!isNew || state === undefined) return
  const reason = 'wal' in damage ? describeHole(damage.wal) : describeBackup(damage.backup.label, damage.reason)
  // No state is entered: the failure of a failed cluster remains its last event with a state.
  await tx.query(
    `insert into event (kind, resource_id, from_state, to_state, event, note) values ('cluster', $1, $2, '', 'damage', $3)`,
    [id, state, reason],
  )
  if (state !== 'ready') return
  await setDegraded(tx, id, reason)
  await queueBackup(tx, id)
  await enqueue(tx, 'cluster', id)
}

async function recordBackup(tx: Tx, { clusterId, label }: BackupPlace, reason: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    // The result of a scrub that is under way does not count.
    `update backup set damage = $3, damaged_at = now(), scrubbed_at = null, scrub_started_at = null, scrub_lsn = null,
       recheck_at = now() + interval '1 hour' * $4
     where cluster_id = $1 and label = $2 and damage is null`,
    [clusterId, label, reason, recheckHours],
  )
  // A restored cluster that depends on this backup has no window until its own backup.
  await tx.query(
    `update archive set base = null where base -> 'backup' ->> 'clusterId' = $1 and base -> 'backup' ->> 'label' = $2`,
    [clusterId, label],
  )
  return rowCount === 1
}

async function recordHole(tx: Tx, hole: ArchiveHole): Promise<boolean> {
  const { clusterId, epoch, timeline, fromLsn, toLsn, kind, reason } = hole
  const { rowCount } = await tx.query(
    `insert into damage (cluster_id, epoch, timeline, from_lsn, to_lsn, kind, reason)
     values ($1, $2, $3, $4, $5, $6, $7) on conflict do nothing`,
    [clusterId, epoch, timeline, fromLsn, toLsn, kind, reason],
  )
  if (rowCount === 0) return false
  await tx.query(
    `update backup set damage = $5, damaged_at = now(), scrubbed_at = null
     where cluster_id = $1 and epoch = $2 and state = 'completed' and damage is null
       and start_lsn < $4::pg_lsn and stop_lsn > $3::pg_lsn`,
    [clusterId, epoch, fromLsn, toLsn, neededWalDamage(reason)],
  )
  await releaseBrokenBases(tx, hole)
  await excludeWal(tx, hole)
  return true
}

/** The damage of a backup whose own files are intact. */
export function neededWalDamage(reason: string): string {
  return `the WAL it needs cannot be used: ${reason}`
}

/** The bases whose WAL has the hole. The WAL of a base starts with its backup if that is of the same epoch. */
async function releaseBrokenBases(tx: Tx, { clusterId, epoch, fromLsn, toLsn }: ArchiveHole): Promise<void> {
  await tx.query(
    `update archive set base = null where base is not null and exists (
       select 1 from jsonb_array_elements(base -> 'pieces') with ordinality as listed (piece, position)
       where piece ->> 'clusterId' = $1 and (piece ->> 'epoch')::int = $2 and (piece ->> 'end')::pg_lsn > $3::pg_lsn
         and (position > 1 or (base -> 'backup' ->> 'startLsn')::pg_lsn < $4::pg_lsn))`,
    [clusterId, epoch, fromLsn, toLsn],
  )
}

/** Without its history, nothing on a timeline can be replayed: archiving restarts, and fetches it again. */
async function excludeWal(tx: Tx, { clusterId, epoch, fromLsn, toLsn }: ArchiveHole): Promise<void> {
  await splitStretches(tx, clusterId, epoch, { from: fromLsn, to: toLsn })
  if (parseLsn(toLsn) < lastLsn) return
  await tx.query('update archive set ended_at = now() where cluster_id = $1 and epoch = $2 and ended_at is null', [
    clusterId,
    epoch,
  ])
}

/** More serious problems are not replaced. */
async function setDegraded(tx: Tx, id: string, reason: string): Promise<void> {
  await tx.query(
    `update cluster set health = 'degraded', health_reason = $2,
       health_since = case when health = 'ok' then now() else health_since end
     where id = $1 and health in ('ok', 'degraded')`,
    [id, reason],
  )
}

/** The newest damage without a completed backup that started after it was found. */
export async function findUnreplacedDamage(db: Query, clusterId: string): Promise<string | undefined> {
  const { rows } = await db.query<{ label: string | null; kind: ArchiveHole['kind']; reason: string }>(
    `select label, kind, reason from (
       select label, 'damaged' as kind, damage as reason, damaged_at as at from backup
       where cluster_id = $1 and state = 'completed' and damage is not null
       union all
       select null, kind, reason, found_at from damage where cluster_id = $1) found
     where not exists (
       select 1 from backup
       where cluster_id = $1 and state = 'completed' and damage is null and started_at > found.at)
     order by label is not null, at desc limit 1`,
    [clusterId],
  )
  const [found] = rows
  if (!found) return undefined
  return found.label === null ? describeHole(found) : describeBackup(found.label, found.reason)
}

function describeBackup(label: string, reason: string): string {
  return `backup ${label} is damaged, and a new one follows: ${reason}`
}

function describeHole({ kind, reason }: Pick<ArchiveHole, 'kind' | 'reason'>): string {
  const is = kind === 'missing' ? 'is incomplete' : 'is damaged'
  return `the archive ${is}, and a new backup follows: ${reason}`
}

/** Removes what is recorded about the WAL of a purged cluster. */
export async function deleteDamage(tx: Tx, clusterId: string): Promise<void> {
  await tx.query('delete from damage where cluster_id = $1', [clusterId])
}
