import { action } from '../../model/account/access.ts'
import { requireWriter } from '../../model/account/caller.ts'
import { type CreateOrg, type Org, slugPattern, type UpdateOrg } from '../../model/account/org.ts'
import type { Caller } from '../../model/account/token.ts'
import { forbidden, notFound } from '../../model/errors.ts'
import { findOrg, insertOrg, listOrgs, setCrossNetworkReplays } from '../../store/account/org.ts'
import { type Context, getCaller } from '../context.ts'
import { isPermitted } from './access.ts'

const slugForm = new RegExp(slugPattern)

export async function createOrg(ctx: Context, input: CreateOrg): Promise<Org> {
  const caller = await getCaller(ctx)
  if (caller.kind !== 'root') throw forbidden('only a root token may create organizations')
  return insertOrg(ctx.db, input.slug, input.name ?? input.slug)
}

export async function listVisibleOrgs(ctx: Context): Promise<Org[]> {
  return permittedOrgs(ctx, await listOrgsOf(ctx, await getCaller(ctx)))
}

/** Those of the caller, whether caveats permit reading them or not. */
export function listOrgsOf(ctx: Context, caller: Caller): Promise<Org[]> {
  return listOrgs(ctx.db, caller)
}

export function permittedOrgs(ctx: Context, orgs: Org[]): Org[] {
  return orgs.filter(({ numericId }) => isPermitted(ctx, { action: action.read, org: numericId }))
}

export async function getVisibleOrg(ctx: Context, slug: string): Promise<Org> {
  return getOrg(ctx, await getCaller(ctx), slug)
}

export async function updateOrg(ctx: Context, slug: string, input: UpdateOrg): Promise<Org> {
  const caller = await getCaller(ctx)
  requireWriter(caller)
  const org = await setCrossNetworkReplays(ctx.db, caller, slugOrNotFound(slug), input.cross_network_replays)
  if (!org) throw organizationNotFound()
  return org
}

export async function getOrg(ctx: Context, caller: Caller, slug: string): Promise<Org> {
  const org = await findOrg(ctx.db, caller, slugOrNotFound(slug))
  if (!org) throw organizationNotFound()
  return org
}

/** The response is the same for an unknown organization and for one that the token may not see. */
export function organizationNotFound() {
  return notFound('organization not found')
}

/** Invalid slugs must not reach the database, which rejects NUL bytes with an error. */
export function slugOrNotFound(slug: string): string {
  if (!slugForm.test(slug)) throw organizationNotFound()
  return slug
}
