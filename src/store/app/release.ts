import type { Caller } from '../../model/account/token.ts'
import { keptReleases, type Release } from '../../model/app/release.ts'
import type { Micros } from '../../model/time.ts'
import type { Query, Tx } from '../db.ts'

const columns = `release.id, version, status, image, strategy, definition, created_by as "createdBy",
  release.created_at as "createdAt", release.updated_at as "updatedAt"`

/** The caller must hold a lock on the app, so that two releases do not get the same version. */
export async function insertRelease(
  tx: Tx,
  appId: string,
  release: Pick<Release, 'id' | 'status' | 'image' | 'strategy' | 'definition' | 'createdBy'>,
): Promise<Release> {
  const { id, status, image, strategy, definition, createdBy } = release
  const { rows } = await tx.query<Release>(
    `insert into release (id, app_id, version, status, image, strategy, definition, created_by)
     select $1, $2, coalesce(max(version), 0) + 1, $3, $4, $5, $6, $7 from release where app_id = $2
     returning ${columns}`,
    [id, appId, status, image, strategy, JSON.stringify(definition), createdBy],
  )
  await tx.query('delete from release where app_id = $1 and version <= $2', [appId, rows[0]!.version - keptReleases])
  return rows[0]!
}

/** Newest first. */
export async function listReleases(db: Query, appId: string, limit: number): Promise<Release[]> {
  const { rows } = await db.query<Release>(
    `select ${columns} from release where app_id = $1 order by version desc limit $2`,
    [appId, limit],
  )
  return rows
}

/** Undefined also when the caller may not see it. */
export async function setReleaseStatus(
  db: Query,
  caller: Caller,
  id: string,
  status: string,
): Promise<Release | undefined> {
  const { rows } = await db.query<Release>(
    `update release set status = $3, updated_at = now() from app
     where release.id = $1 and app.id = app_id and app.state = 'active' and ($2::text is null or app.org_id = $2)
       and app.id = coalesce((select app_id from token where id = $4), app.id)
     returning ${columns}`,
    [id, caller.orgId, status, caller.tokenId],
  )
  return rows[0]
}

/** When each app that the caller may see was last released. */
export async function listReleaseTimes(db: Query, caller: Caller): Promise<{ name: string; at: Micros }[]> {
  const { rows } = await db.query<{ name: string; at: Micros }>(
    `select app.name, newest.at from app, lateral (
       select created_at as at from release where app_id = app.id order by version desc limit 1) newest
     where app.state = 'active' and ($1::text is null or app.org_id = $1) order by app.name`,
    [caller.orgId],
  )
  return rows
}
