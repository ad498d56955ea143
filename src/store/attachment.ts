import type { Micros } from '../model/time.ts'
import type { Query, Tx } from './db.ts'

export interface Attachment {
  attachedAt: Micros
  /** False when the app was attached before. */
  isNew: boolean
}

/** Undefined when the organization has no active app of that name. Repeating changes nothing. */
export async function attachApp(
  tx: Tx,
  clusterId: string,
  orgId: string,
  appName: string,
): Promise<Attachment | undefined> {
  const { rows } = await tx.query<{ appId: string }>(
    `select id as "appId" from app where name = $1 and org_id = $2 and state = 'active' for share`,
    [appName, orgId],
  )
  if (!rows[0]) return undefined
  const inserted = await tx.query<{ at: Micros }>(
    `insert into attachment (cluster_id, app_id) values ($1, $2) on conflict do nothing returning attached_at as at`,
    [clusterId, rows[0].appId],
  )
  if (inserted.rows[0]) return { attachedAt: inserted.rows[0].at, isNew: true }
  const found = await tx.query<{ at: Micros }>(
    'select attached_at as at from attachment where cluster_id = $1 and app_id = $2',
    [clusterId, rows[0].appId],
  )
  return { attachedAt: found.rows[0]!.at, isNew: false }
}

/** False when the app was not attached. */
export async function detachApp(db: Query, clusterId: string, appName: string): Promise<boolean> {
  const { rowCount } = await db.query(
    `delete from attachment using app
     where cluster_id = $1 and app.id = app_id and app.name = $2 and app.state = 'active'`,
    [clusterId, appName],
  )
  return rowCount === 1
}
