import { type AppPolicy, maxPolicies, type PutNetworkPolicy, readPolicy } from '../../model/app/network-policy.ts'
import { badRequest, invalid, notFound } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import {
  countPolicies,
  enqueuePolicyChange,
  insertPolicy,
  listForeignMachines,
  listPolicies,
  nextPoliciesVersion,
  removePolicy,
  replacePolicy,
} from '../../store/app/network-policy.ts'
import { appNotFound, getVisibleApp, getWritableApp } from '../../store/app/visible.ts'
import type { Tx } from '../../store/db.ts'
import type { Context } from '../context.ts'

/** The version that running machines have to apply before the change is in effect. */
export interface PolicyChange {
  appId: string
  version: number
}

export async function listPoliciesOf(ctx: Context, appName: string): Promise<AppPolicy[]> {
  const { app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  return (await listPolicies(ctx.db, app.id)).policies
}

export async function getPolicy(ctx: Context, appName: string, id: string): Promise<AppPolicy> {
  const policy = (await listPoliciesOf(ctx, appName)).find((one) => one.id === id)
  if (!policy) throw policyNotFound()
  return policy
}

/** Creates or replaces a policy. Rejected if the host cannot enforce it. */
export async function putPolicy(
  ctx: Context,
  appName: string,
  body: PutNetworkPolicy,
  isEnforced: boolean,
): Promise<{ policy: AppPolicy; change: PolicyChange }> {
  const { id: appId } = await getWritableApp(ctx.db, ctx.tokenHash, appName)
  if (!isEnforced)
    throw invalid('network policies cannot be enforced on this host: Berth must run as root, with nft and ip')
  const policy: AppPolicy = { ...readPolicy(body), id: body.id || newId() }
  const change = await changePolicies(ctx, appId, async (tx) => {
    await requireMachines(tx, appId, policy)
    if (body.id) {
      if (!(await replacePolicy(tx, appId, policy))) throw policyNotFound()
      return
    }
    if ((await countPolicies(tx, appId)) >= maxPolicies)
      throw badRequest(`an app has at most ${maxPolicies} network policies; delete one first`)
    await insertPolicy(tx, appId, policy)
  })
  return { policy, change }
}

export async function deletePolicy(ctx: Context, appName: string, id: string): Promise<PolicyChange> {
  const { id: appId } = await getWritableApp(ctx.db, ctx.tokenHash, appName)
  return changePolicies(ctx, appId, async (tx) => {
    if (id.includes('\0') || !(await removePolicy(tx, appId, id))) throw policyNotFound()
  })
}

function changePolicies(ctx: Context, appId: string, change: (tx: Tx) => Promise<void>): Promise<PolicyChange> {
  return ctx.db.transaction(async (tx) => {
    // This comes first, because it locks the policies.
    const version = await nextPoliciesVersion(tx, appId)
    if (version === undefined) throw appNotFound()
    await change(tx)
    await enqueuePolicyChange(tx, appId)
    return { appId, version }
  })
}

/** A mistyped id would leave the intended machine unprotected. */
async function requireMachines(tx: Tx, appId: string, { selector }: AppPolicy): Promise<void> {
  const ids = (selector.machines ?? []).map(({ id }) => id.replaceAll('\0', ''))
  const [missing] = ids.length > 0 ? await listForeignMachines(tx, appId, ids) : []
  if (missing !== undefined)
    throw badRequest(`selector.machines: the app has no machine ${JSON.stringify(missing.slice(0, 64))}`)
}

function policyNotFound() {
  return notFound('network policy not found')
}
