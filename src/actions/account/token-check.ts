import { type Access, actionBits } from '../../model/account/access.ts'
import { requireWriter } from '../../model/account/caller.ts'
import { isCurrent } from '../../model/account/caveat.ts'
import type { Attenuation } from '../../model/account/macaroon.ts'
import type { Caller } from '../../model/account/token.ts'
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
import { requirePermitted } from './access.ts'
import { readCredential } from './credential.ts'
import { getOrg } from './org.ts'

export interface CheckedToken {
  text: string
  token: ValidToken
  attenuation: Attenuation | undefined
}

/** No client sends more; the limit bounds the work per request. */
const maxTokens = 32

/** Returns the tokens that are valid for the platform API, in the order of the header. */
export async function authenticateTokens(
  ctx: Pick<Context, 'db' | 'encryptionKey'>,
  texts: string[],
): Promise<CheckedToken[]> {
  if (texts.length > maxTokens) throw badRequest(`header may contain at most ${maxTokens} tokens`)
  const credentials = texts.map((text) => readCredential(text, ctx.encryptionKey))
  const hashes = credentials.flatMap((credential) => credential?.hash ?? [])
  const valid = await listValidTokens(ctx.db, hashes)
  const found = texts.flatMap((text, at) => {
    const credential = credentials[at]
    const token = valid.find(({ hash, kind }) => credential?.hash.equals(hash) && kind !== 'sandbox')
    const attenuation = credential?.attenuation
    return token && isCurrent(attenuation?.caveats ?? []) ? [{ text, token, attenuation }] : []
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
  const own = { ...ctx, tokenHash: checked.token.hash, attenuation: checked.attenuation }
  const action = readAction(access.action)
  const { caller, ...numbers } = await (isOfApp(access) ? findInApp(own, access) : findInOrg(own, access.org_slug!))
  if (/[^r]/.test(action)) requireWriter(caller)
  requirePermitted(own, askedAccess(access, action, numbers))
  return { checked, action, ...numbers }
}

/** The access as the service describes it. */
function askedAccess(
  asked: TokenAccess,
  letters: string,
  { orgNumericId, appNumericId }: Omit<Found, 'caller'>,
): Access {
  const given = {
    machine: asked.machine_id,
    volume: asked.volume_id,
    feature: asked.org_feature,
    appFeature: asked.app_feature,
    machineFeature: asked.machine_feature,
    mutation: asked.mutation,
    command: asked.command,
    storageObject: asked.storage_object,
  }
  return {
    action: actionBits(letters),
    org: orgNumericId,
    ...(appNumericId !== null && { app: appNumericId }),
    ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)),
  }
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
