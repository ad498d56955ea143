import type { Org } from '../../model/account/org.ts'
import type { Caller } from '../../model/account/token.ts'
import { invalid } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import type { Query } from '../db.ts'

const columns = `id, numeric_id as "numericId", slug, name, cross_network_replays as "crossNetworkReplays",
  created_at as "createdAt"`

export async function insertOrg(db: Query, slug: string, name: string): Promise<Org> {
  const org = await insertOrgOnce(db, slug, name)
  if (!org) throw invalid(`slug ${slug} has already been taken`, { status: 'name_taken' })
  return org
}

/** Undefined when the slug is taken. */
export async function insertOrgOnce(db: Query, slug: string, name: string): Promise<Org | undefined> {
  const { rows } = await db.query<Org>(
    `insert into org (id, slug, name) values ($1, $2, $3) on conflict (slug) do nothing returning ${columns}`,
    [newId(), slug, name],
  )
  return rows[0]
}

/** Undefined also when the caller may not see it, so that the existence of other organizations is not revealed. */
export async function findOrg(db: Query, caller: Caller, slug: string): Promise<Org | undefined> {
  const { rows } = await db.query<Org>(`select ${columns} from org where slug = $1 and ($2::text is null or id = $2)`, [
    slug,
    caller.orgId,
  ])
  return rows[0]
}

/** Undefined when there is none that the caller may see. */
export async function setCrossNetworkReplays(
  db: Query,
  caller: Caller,
  slug: string,
  allowed: boolean,
): Promise<Org | undefined> {
  const { rows } = await db.query<Org>(
    `update org set cross_network_replays = $3 where slug = $1 and ($2::text is null or id = $2) returning ${columns}`,
    [slug, caller.orgId, allowed],
  )
  return rows[0]
}

export async function listOrgs(db: Query, caller: Caller): Promise<Org[]> {
  const { rows } = await db.query<Org>(`select ${columns} from org where $1::text is null or id = $1 order by slug`, [
    caller.orgId,
  ])
  return rows
}
