import {
  type OrgQuotas,
  type Quota,
  type QuotaChange,
  type QuotaLimits,
  type QuotaName,
  quotaNames,
} from '../../model/account/quota.ts'
import type { Caller } from '../../model/account/token.ts'
import type { Db, Query, Tx } from '../db.ts'
import { translatingErrors } from '../db-error.ts'

/** Stores the limits for organizations without their own, where the triggers that count usage find them. */
export async function putQuotaDefaults(db: Db, limits: QuotaLimits): Promise<void> {
  await db.transaction(async (tx) => {
    await tx.query('delete from quota_default where quota <> all($1)', [quotaNames])
    await tx.query(
      `insert into quota_default (quota, max) select * from unnest($1::text[], $2::bigint[])
       on conflict (quota) do update set max = excluded.max`,
      [quotaNames, quotaNames.map((name) => limits[name])],
    )
  })
}

/** The quotas and usage of the organizations that the caller may see, sorted by slug. `slug` limits the list to one. */
export async function listQuotas(db: Query, caller: Pick<Caller, 'orgId'>, slug?: string): Promise<OrgQuotas[]> {
  const { rows } = await db.query<Omit<OrgQuotas, 'quotas'> & { quotas: Quota[] }>({
    name: 'list-quotas',
    text: `select org.id as "orgId", org.slug, array(
             select json_build_object('name', standard.quota, 'limit', quota_limit(org.id, standard.quota),
               'used', coalesce(usage.used, 0), 'isOwn', own.org_id is not null)
             from quota_default standard
               left join org_quota own on own.org_id = org.id and own.quota = standard.quota
               left join org_usage usage on usage.org_id = org.id and usage.quota = standard.quota) as quotas
           from org where ($1::text is null or org.id = $1) and ($2::text is null or org.slug = $2) order by slug`,
    values: [caller.orgId, slug ?? null],
  })
  return rows.map((row) => ({ ...row, quotas: inOrder(row.quotas) }))
}

function inOrder(quotas: Quota[]): Quota[] {
  return quotaNames.flatMap((name) => quotas.find((quota) => quota.name === name) ?? [])
}

export interface OrgLimit {
  orgId: string
  slug: string
  /** Null means unlimited. */
  limit: number | null
}

/** Undefined for a root token, which belongs to no organization, and for one that is not valid. */
export async function findSocketLimit(db: Pick<Db, 'read'>, tokenHash: Buffer): Promise<OrgLimit | undefined> {
  const [row] = await db.read<OrgLimit>({
    name: 'find-socket-limit',
    text: `select org.id as "orgId", org.slug, quota_limit(org.id, 'sockets') as limit
           from token join org on org.id = token.org_id where hash = $1`,
    values: [tokenHash],
  })
  return row
}

export async function getOrgLimit(db: Pick<Db, 'read'>, orgId: string, name: QuotaName): Promise<OrgLimit> {
  const [row] = await db.read<OrgLimit>({
    name: 'get-org-limit',
    text: 'select id as "orgId", slug, quota_limit(id, $2) as limit from org where id = $1',
    values: [orgId, name],
  })
  return row!
}

/** Whether the quota of its organization lets a volume grow by so much. */
export async function mayVolumeGrow(db: Query, volumeId: string, gb: number): Promise<boolean> {
  const { rows } = await db.query<{ fits: boolean }>(
    `select coalesce(used + $2 <= quota_limit(org_id, quota), true) as fits from volume
       join org_usage on org_id = org_of(volume) and quota = 'disk_gb'
     where volume.id = $1`,
    [volumeId, gb],
  )
  return rows[0]?.fits ?? true
}

/** Whether the deleted volumes of its organization would, with this one, take no more space than it may reserve. */
export async function mayKeepVolume(db: Query, volumeId: string): Promise<boolean> {
  const { rows } = await db.query<{ fits: boolean }>(
    `select coalesce(deleted.size_gb + (
         select coalesce(sum(kept.size_gb), 0) from app join volume kept on kept.app_id = app.id
         where app.org_id = org_of(deleted) and kept.state = 'pending_destroy')
       <= quota_limit(org_of(deleted), 'disk_gb'), true) as fits
     from volume deleted where id = $1`,
    [volumeId],
  )
  return rows[0]?.fits ?? true
}

/** Forgets the images that nothing uses and nothing was created with for so long, so that they no longer count. */
export async function removeUnusedImages(db: Query, afterMs: number): Promise<void> {
  await db.query(
    `delete from org_image where used_at < now() - interval '1 millisecond' * $1 and (org_id, reference) not in (
       select org_id, config ->> 'image' from machine join app on app.id = app_id where counts(machine)
       union all select org_id, container ->> 'image' from machine join app on app.id = app_id
         cross join lateral jsonb_path_query(config, '$.containers[*]') container where counts(machine)
       union all select org_id, image ->> 'reference' from sandbox where counts(sandbox) and image is not null)`,
    [afterMs],
  )
}

/** Reports an exceeded quota now instead of when the transaction is committed. */
export async function checkQuotas(tx: Tx): Promise<void> {
  await translatingErrors(tx.query('set constraints all immediate'))
}

export async function setQuotas(tx: Tx, orgId: string, changes: QuotaChange[]): Promise<void> {
  for (const { name, limit } of changes) {
    if (limit === 'default') await tx.query('delete from org_quota where org_id = $1 and quota = $2', [orgId, name])
    else await putQuota(tx, orgId, name, limit)
  }
}

async function putQuota(tx: Tx, orgId: string, name: QuotaName, max: number | null): Promise<void> {
  await tx.query(
    `insert into org_quota (org_id, quota, max) values ($1, $2, $3)
     on conflict (org_id, quota) do update set max = excluded.max`,
    [orgId, name, max],
  )
}
