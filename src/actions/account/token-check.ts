import { requireWriter } from '../../model/account/caller.ts'
import { type Caller, hashToken } from '../../model/account/token.ts'
import { checkAccess, readAction, type TokenAccess, type ValidToken } from '../../model/account/token-check.ts'
import { machineIdPattern } from '../../model/app/machine.ts'
import { volumeIdPattern } from '../../model/app/volume.ts'
import { badRequest, unauthorized } from '../../model/errors.ts'
import { listValidTokens } from '../../store/account/token.ts'
import { findAppNameOf } from '../../store/app/app.ts'
import { getVisibleMachine, machineNotFound } from '../../store/app/machine.ts'
import { getVisibleApp } from '../../store/app/visible.ts'
import { volumeNotFound } from '../../store/app/volume.ts'
import { getVolume } from '../app/volume.ts'
import { type Context, getCaller, requireToken } from '../context.ts'
import { getOrg } from './org.ts'

export interface CheckedToken {
  text: string
  token: ValidToken
}

/** No client sends more; the limit bounds the work per request. */
const maxTokens = 32

/** Returns the tokens that are valid for the platform API, in the order of the header. */
export async function authenticateTokens(ctx: Pick<Context, 'db'>, texts: string[]): Promise<CheckedToken[]> {
  if (texts.length > maxTokens) throw badRequest(`header may contain at most ${maxTokens} tokens`)
  const hashes = texts.map(hashToken)
  const valid = await listValidTokens(ctx.db, hashes)
  const found = texts.flatMap((text, at) => {
    const token = valid.find(({ hash, kind }) => hash.equals(hashes[at]!) && kind !== 'sandbox')
    return token ? [{ text, token }] : []
  })
  if (found.length === 0) throw unauthorized('invalid token')
  return found
}

export interface Authorized {
  checked: CheckedToken
  action: string
  orgNumericId: number
  appNumericId: number | null
}

/** Succeeds with the first token that permits the access; otherwise throws the error of the first token. */
export async function authorizeTokens(ctx: Context, texts: string[], access: TokenAccess): Promise<Authorized> {
  const found = await authenticateTokens(ctx, texts)
  checkAccess(access)
  const results = await Promise.allSettled(found.map((checked) => authorize(ctx, checked, access)))
  const allowed = results.find((result) => result.status === 'fulfilled')
  if (!allowed) throw (results[0] as PromiseRejectedResult).reason
  return allowed.value
}

/** Applies the same checks as a request with this token. */
async function authorize(ctx: Context, checked: CheckedToken, access: TokenAccess): Promise<Authorized> {
  const own = { ...ctx, tokenHash: checked.token.hash }
  const action = readAction(access.action)
  const { caller, ...numbers } = await (isOfApp(access) ? findInApp(own, access) : findInOrg(own, access.org_slug!))
  if (/[^r]/.test(action)) requireWriter(caller)
  return { checked, action, ...numbers }
}

interface Found extends Pick<Authorized, 'orgNumericId' | 'appNumericId'> {
  caller: Caller
}

function isOfApp({ app_name, machine_id, volume_id }: TokenAccess): boolean {
  return (app_name ?? machine_id ?? volume_id) !== undefined
}

async function findInOrg(ctx: Context, slug: string): Promise<Found> {
  const caller = await getCaller(ctx)
  const org = await getOrg(ctx, caller, slug)
  return { caller, orgNumericId: org.numericId, appNumericId: null }
}

async function findInApp(ctx: Context, access: TokenAccess): Promise<Found> {
  const name = access.app_name ?? (await ownerOf(ctx, access))
  const { caller, app } = await getVisibleApp(ctx.db, ctx.tokenHash, name)
  if (access.org_slug !== undefined && access.org_slug !== app.orgSlug)
    throw badRequest(`access.org_slug: the app ${name} belongs to another organization`)
  if (access.machine_id !== undefined) await getVisibleMachine(ctx.db, ctx.tokenHash, name, access.machine_id)
  if (access.volume_id !== undefined) await getVolume(ctx, name, access.volume_id)
  return { caller, orgNumericId: app.orgNumericId, appNumericId: app.numericId }
}

/** The name of the app of a machine or volume. */
async function ownerOf(ctx: Context, { machine_id, volume_id }: TokenAccess): Promise<string> {
  const isPossible = machine_id === undefined ? volumeIdPattern.test(volume_id!) : machineIdPattern.test(machine_id)
  const name = isPossible ? await findAppNameOf(ctx.db, machine_id ?? volume_id!, await requireToken(ctx)) : undefined
  if (name !== undefined) return name
  throw machine_id === undefined ? volumeNotFound() : machineNotFound()
}
