import { type OrgQuotas, readQuotaChanges, type SetQuotas } from '../../model/account/quota.ts'
import { forbidden } from '../../model/errors.ts'
import { listQuotas, setQuotas } from '../../store/account/quota.ts'
import type { Db } from '../../store/db.ts'
import { type Context, checked, getCaller } from '../context.ts'
import { getOrg, organizationNotFound, slugOrNotFound } from './org.ts'

export async function getQuotas(ctx: Context, slug: string): Promise<OrgQuotas> {
  const caller = await getCaller(ctx)
  const [found] = await listQuotas(ctx.db, caller, slugOrNotFound(slug))
  if (!found) throw organizationNotFound()
  return found
}

export async function listVisibleQuotas(ctx: Context): Promise<OrgQuotas[]> {
  return listQuotas(ctx.db, await getCaller(ctx))
}

/** For the metrics of the platform, which only its operator may read. */
export async function listAllQuotas(db: Db): Promise<OrgQuotas[]> {
  return listQuotas(db, { orgId: null })
}

/** A limit below the current usage removes nothing; it only prevents more. */
export async function changeQuotas(ctx: Context, slug: string, input: SetQuotas): Promise<OrgQuotas> {
  const changes = await checked(ctx, () => readQuotaChanges(input))
  const caller = await getCaller(ctx)
  const org = await getOrg(ctx, caller, slug)
  if (caller.kind !== 'root') throw forbidden('only a root token may change quotas')
  return ctx.db.transaction(async (tx) => {
    await setQuotas(tx, org.id, changes)
    return (await listQuotas(tx, caller, org.slug))[0]!
  })
}
