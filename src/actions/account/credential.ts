// The tokens that a request was sent with. Clients send several, and each of them may permit the request.
import { action } from '../../model/account/access.ts'
import { type Caveat, isCurrent } from '../../model/account/caveat.ts'
import { type Attenuation, verifyAttenuation } from '../../model/account/macaroon.ts'
import { hashToken } from '../../model/account/token.ts'
import type { ValidToken } from '../../model/account/token-check.ts'
import { listValidTokens } from '../../store/account/token.ts'
import type { Context } from '../context.ts'
import { isAllowed, requireAccessBy, type Target } from './access.ts'

export interface Credential {
  /** The hash of the token as it was issued. It does not tell that the token exists. */
  hash: Buffer
  attenuation: Attenuation | undefined
}

/** Undefined for a token that was changed, or has caveats that cannot be enforced. */
export function readCredential(token: string, secret: Buffer): Credential | undefined {
  const issued = verifyAttenuation(token, secret)
  return issued && { hash: hashToken(issued.text), attenuation: issued.attenuation }
}

/**
 * Chooses among the tokens of a request the first one that permits it. When none does, the request is refused in the name of
 * the first valid one.
 */
export async function chooseCredential(
  ctx: Pick<Context, 'db' | 'area'>,
  credentials: readonly Credential[],
  targets: Target[],
  bits: number,
): Promise<Credential> {
  const tokens = await listValidTokens(
    ctx.db,
    credentials.map(({ hash }) => hash),
  )
  const valid: Credential[] = []
  for (const credential of credentials) {
    const token = tokens.find(({ hash }) => hash.equals(credential.hash))
    const appended = credential.attenuation?.caveats ?? []
    if (!token || (token.kind === 'sandbox' && ctx.area === 'platform') || !isCurrent(appended)) continue
    valid.push(credential)
    const caveats = [...ownCaveats(token), ...appended]
    if (await isAllowed(requireAccessBy(ctx, token, caveats, targets, bits))) return credential
  }
  return valid.find(({ attenuation }) => !attenuation) ?? valid[0] ?? credentials[0]!
}

/** What the stored row of a token limits it to, as caveats. */
export function ownCaveats({ kind, orgNumericId, appNumericId }: ValidToken): Caveat[] {
  const caveats: Caveat[] = []
  const mask = kind === 'read' ? action.read : action.all
  if (orgNumericId !== null) caveats.push({ type: 'organization', id: orgNumericId, mask })
  if (appNumericId !== null) caveats.push({ type: 'set', kind: 'app', masks: new Map([[appNumericId, action.all]]) })
  return caveats
}
