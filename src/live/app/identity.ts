import type { KeyObject } from 'node:crypto'
import { type IdentityWish, identityClaims, publicJwk, signToken } from '../../model/app/identity.ts'
import { forbidden } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import { apiPort, parseMachineAddress } from '../../model/network.ts'
import { findIdentity } from '../../store/app/identity.ts'
import { type LiveContext, withDeadline } from '../context.ts'

/** Issues a token to the machine that has this address. */
export async function issueIdentity(
  ctx: Pick<LiveContext, 'db' | 'settings' | 'identityKey'>,
  address: string,
  request: IdentityWish,
): Promise<string> {
  const location = parseMachineAddress(ctx.settings.homeNumber, address)
  const identity = location && (await findIdentity(ctx.db, location.networkNumber, location.slot))
  if (!identity)
    throw forbidden(`only machines have identities: ask at http://_api.internal:${apiPort} from inside of one`)
  const issued = { issuer: ctx.settings.issuer(), now: Math.floor(Date.now() / 1000), id: newId() }
  return signToken(await openKey(ctx), identityClaims(identity, request, issued))
}

export async function listIdentityKeys(ctx: Pick<LiveContext, 'identityKey'>) {
  return { keys: [publicJwk(await openKey(ctx))] }
}

/** The first call creates the key, which takes a moment. */
function openKey(ctx: Pick<LiveContext, 'identityKey'>): Promise<KeyObject> {
  return withDeadline(ctx.identityKey(), 'the key')
}
