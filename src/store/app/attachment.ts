import type { Secret } from '../../model/app/secret.ts'
import type { Micros } from '../../model/time.ts'
import type { Tx } from '../db.ts'
import { nextSecretsVersion } from './secret.ts'

export interface Attachment {
  appId: string
  attachedAt: Micros
  /** False when the app was already attached. */
  isNew: boolean
}

/**
 * Attaches an app and locks it against concurrent changes. Idempotent. Undefined when the organization has no active app
 * of that name.
 */
export async function attachApp(
  tx: Tx,
  clusterId: string,
  orgId: string,
  appName: string,
): Promise<Attachment | undefined> {
  const { rows } = await tx.query<{ appId: string }>(
    `select id as "appId" from app where name = $1 and org_id = $2 and state = 'active' for no key update`,
    [appName, orgId],
  )
  if (!rows[0]) return undefined
  const { appId } = rows[0]
  const inserted = await tx.query<{ at: Micros }>(
    `insert into attachment (cluster_id, app_id) values ($1, $2) on conflict do nothing returning attached_at as at`,
    [clusterId, appId],
  )
  if (inserted.rows[0]) return { appId, attachedAt: inserted.rows[0].at, isNew: true }
  const found = await tx.query<{ at: Micros }>(
    'select attached_at as at from attachment where cluster_id = $1 and app_id = $2',
    [clusterId, appId],
  )
  return { appId, attachedAt: found.rows[0]!.at, isNew: false }
}

export async function noteAttachmentSecret(
  tx: Tx,
  clusterId: string,
  appId: string,
  { name, digest }: Pick<Secret, 'name' | 'digest'>,
): Promise<void> {
  await tx.query(
    `insert into attachment_secret (cluster_id, app_id, name, digest) values ($1, $2, $3, $4)
     on conflict (cluster_id, app_id, name) do update set digest = excluded.digest`,
    [clusterId, appId, name, digest],
  )
}

/** Also removes the secrets that attaching set, unless they were changed. Returns false when the app was not attached. */
export async function detachApp(tx: Tx, clusterId: string, appName: string): Promise<boolean> {
  const { rows } = await tx.query<{ appId: string }>(
    `select app.id as "appId" from attachment join app on app.id = app_id
     where cluster_id = $1 and app.name = $2 and app.state = 'active' for no key update of app`,
    [clusterId, appName],
  )
  if (!rows[0]) return false
  const { appId } = rows[0]
  const removed = await tx.query(
    `delete from secret using attachment_secret as noted
     where noted.cluster_id = $1 and noted.app_id = $2 and secret.app_id = noted.app_id
       and secret.name = noted.name and secret.digest = noted.digest`,
    [clusterId, appId],
  )
  if (removed.rowCount !== 0) await nextSecretsVersion(tx, appId)
  const { rowCount } = await tx.query('delete from attachment where cluster_id = $1 and app_id = $2', [
    clusterId,
    appId,
  ])
  return rowCount === 1
}
