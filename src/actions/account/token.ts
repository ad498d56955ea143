import { requireCaller, requireFullToken, requireWriter } from '../../model/account/caller.ts'
import { mintMacaroon } from '../../model/account/macaroon.ts'
import type { Org } from '../../model/account/org.ts'
import {
  type Caller,
  type CreateToken,
  defaultTokenSeconds,
  hashToken,
  newTokenText,
  rootTokenId,
  type Token,
} from '../../model/account/token.ts'
import type { ValidToken } from '../../model/account/token-check.ts'
import { parseDuration } from '../../model/duration.ts'
import { badRequest, conflict, forbidden, invalid, notFound } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import { insertToken, listTokens, listValidTokens, revokeToken } from '../../store/account/token.ts'
import { lockAppForShare } from '../../store/app/ip.ts'
import { appNotFound, getWritableApp } from '../../store/app/visible.ts'
import { type Context, checked, getCaller } from '../context.ts'
import { getOrg } from './org.ts'

export interface IssuedToken {
  id: string
  /** Returned only once; the platform stores its hash. */
  token: string
  kind: CreateToken['kind']
}

export async function createToken(ctx: Context, input: CreateToken): Promise<IssuedToken> {
  requireFullToken(ctx)
  const caller = await getCaller(ctx)
  requireIssuer(caller, input.kind)
  const org = input.kind === 'root' ? undefined : await getOrg(ctx, caller, requireOrg(input))
  const id = newId()
  const token = textOf(ctx, input, id, org)
  await insertToken(ctx.db, {
    id,
    hash: hashToken(token),
    kind: input.kind,
    orgId: org?.id ?? null,
    sandbox: requireSandbox(input),
    name: input.name ?? '',
    expiresInSeconds: input.expires_in_seconds ?? null,
  })
  return { id, token, kind: input.kind }
}

function textOf(ctx: Context, input: CreateToken, tokenId: string, org: Org | undefined): string {
  if (input.format !== 'fm2') return newTokenText()
  const about = {
    tokenId,
    ...(org && { organization: { numericId: org.numericId, readOnly: input.kind === 'read' } }),
    ...(input.expires_in_seconds && { validity: validityOf(input.expires_in_seconds) }),
  }
  return mintMacaroon(about, ctx.encryptionKey)
}

function validityOf(seconds: number): { from: number; until: number } {
  const from = Math.floor(Date.now() / 1000)
  return { from, until: from + seconds }
}

/** Creates a token for one app. App tokens cannot create tokens. */
export async function createDeployToken(
  ctx: Context,
  appName: string,
  expiry: string | undefined,
  name?: string,
): Promise<Pick<IssuedToken, 'id' | 'token'>> {
  const expiresInSeconds = await checked(ctx, () => readExpiry(expiry))
  requireFullToken(ctx)
  await getCaller(ctx)
  const app = await getWritableApp(ctx.db, ctx.tokenHash, appName)
  const id = newId()
  const organization = { numericId: app.orgNumericId, readOnly: false }
  const about = { tokenId: id, organization, app: app.numericId, validity: validityOf(expiresInSeconds) }
  const token = mintMacaroon(about, ctx.encryptionKey)
  await ctx.db.transaction(async (tx) => {
    // The deletion of the app revokes the tokens that exist then.
    if (!(await lockAppForShare(tx, app.id))) throw appNotFound()
    await insertToken(tx, {
      id,
      hash: hashToken(token),
      kind: 'app',
      orgId: app.orgId,
      sandbox: null,
      appId: app.id,
      name: name || `deploys ${app.name}`,
      expiresInSeconds,
    })
  })
  return { id, token }
}

const maxExpiryMs = 3_153_600_000_000 // a hundred years, as for other tokens

/** What flyctl sends when its user gave no lifetime: twenty years. Nobody chose it, so the token gets the platform's default. */
const clientDefaultMs = 20 * 365 * 24 * 3_600_000

/** The lifetime in seconds of a token that is requested with a duration. */
export function readExpiry(expiry: string | undefined): number {
  const time = expiry ? parseDuration(expiry) : clientDefaultMs
  if (time === undefined || time <= 0 || time > maxExpiryMs)
    throw badRequest('expiry must be a duration such as 24h or 1h30m, at most a hundred years')
  return time === clientDefaultMs ? defaultTokenSeconds : Math.ceil(time / 1000)
}

/** Creates a token for the sandboxes of an organization, and everything else in it. */
export async function createSandboxApiToken(ctx: Context, orgSlug: string, name: string): Promise<IssuedToken> {
  return createToken(ctx, { kind: 'org', org_slug: orgSlug, name, expires_in_seconds: defaultTokenSeconds })
}

/** `appId` limits the list to tokens of this app. */
export async function listTokensOf(ctx: Context, orgSlug: string | undefined, appId?: string): Promise<Token[]> {
  requireFullToken(ctx)
  const caller = await getCaller(ctx)
  requireWriter(caller)
  const orgId = orgSlug === undefined ? caller.orgId : (await getOrg(ctx, caller, orgSlug)).id
  return listTokens(ctx.db, orgId, appId)
}

export async function revokeTokenById(ctx: Context, id: string): Promise<void> {
  requireFullToken(ctx)
  const caller = await getCaller(ctx)
  requireWriter(caller)
  // Invalid ids must not reach the database, which rejects NUL bytes with an error.
  if (id === rootTokenId && caller.kind === 'root') throw rootTokenInUse()
  if (!/^[a-z0-9]{1,16}$/.test(id) || !(await revokeToken(ctx.db, caller, id))) throw notFound('token not found')
}

/** Without the configured root token nobody could create tokens, and the next start would bring it back. */
function rootTokenInUse() {
  return conflict(
    'the root token of the configuration cannot be revoked; replace it with POST /v1/tokens/root/rotate or "berth tokens rotate-root"',
  )
}

export async function getCurrentToken(ctx: Context): Promise<ValidToken> {
  const [token] = await listValidTokens(ctx.db, [ctx.tokenHash])
  return requireCaller(token)
}

/** An organization token may create only tokens with fewer permissions than itself. */
function requireIssuer(caller: Caller, kind: CreateToken['kind']): void {
  requireWriter(caller)
  if (caller.kind !== 'root' && (kind === 'root' || kind === 'org')) {
    throw forbidden(`only a root token may create tokens of kind ${kind}`)
  }
}

function requireOrg(input: CreateToken): string {
  if (!input.org_slug) throw invalid(`org_slug is required for a token of kind ${input.kind}`)
  return input.org_slug
}

function requireSandbox(input: CreateToken): string | null {
  if ((input.kind === 'sandbox') === (input.sandbox !== undefined)) return input.sandbox ?? null
  throw invalid(
    input.kind === 'sandbox'
      ? 'sandbox is required for a token of kind sandbox'
      : 'sandbox goes with kind sandbox only',
  )
}
