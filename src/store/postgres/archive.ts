import type { ArchiveBase } from '../../model/postgres/restore.ts'
import { type Micros, parseTime } from '../../model/time.ts'
import type { Query, Tx } from '../db.ts'
import { endStretches, startStretch } from './stretch.ts'

export interface Archive {
  clusterId: string
  epoch: number
  slot: string
  timeline: number
  startLsn: string
  startedAt: Micros
  endedAt: Micros | null
  base: ArchiveBase | null
}

const columns = `cluster_id as "clusterId", epoch, slot, timeline, start_lsn::text as "startLsn", started_at as "startedAt",
  ended_at as "endedAt", base`

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
  const { rowCount } = await tx.query(
    `insert into archive (cluster_id, epoch, slot, timeline, start_lsn, base) values ($1, $2, $3, $4, $5, $6)
     on conflict do nothing`,
    [clusterId, epoch, slot, timeline, startLsn, base === null ? null : JSON.stringify(base)],
  )
  if (rowCount === 0) return
  const fromAt = base === null ? null : parseTime(base.at)!
  await startStretch(tx, { clusterId, epoch, fromLsn: base?.lsn ?? startLsn, fromAt })
}

/** Ends all epochs of a deleted cluster. */
export async function endArchives(tx: Tx, clusterId: string): Promise<void> {
  await tx.query('update archive set ended_at = now() where cluster_id = $1 and ended_at is null', [clusterId])
  await endStretches(tx, clusterId)
}
