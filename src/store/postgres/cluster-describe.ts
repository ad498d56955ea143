import type { Micros } from '../../model/time.ts'
import type { Query, Tx } from '../db.ts'
import { enqueue } from '../work.ts'

/** Makes the reconciler update the repository's copy of the owner's settings. */
export async function markUndescribed(tx: Tx, clusterId: string): Promise<void> {
  await tx.query('update cluster set undescribed_since = clock_timestamp() where id = $1', [clusterId])
  await enqueue(tx, 'cluster', clusterId)
}

/** Does nothing if the settings changed since they were read. */
export async function markDescribed(db: Query, clusterId: string, since: Micros): Promise<void> {
  await db.query(
    `update cluster set undescribed_since = null
     where id = $1 and undescribed_since = timestamptz 'epoch' + $2::bigint * interval '1 microsecond'`,
    [clusterId, since.toString()],
  )
}

/** The labels of the pinned backups, oldest first. */
export async function listPinned(db: Query, clusterId: string): Promise<string[]> {
  const { rows } = await db.query<{ label: string }>(
    `select label from backup where cluster_id = $1 and state = 'completed' and pinned order by label`,
    [clusterId],
  )
  return rows.map((row) => row.label)
}
