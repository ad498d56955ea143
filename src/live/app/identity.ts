import type { KeyObject } from 'node:crypto'
import { type IdentityWish, identityClaims, publicJwk, signToken } from '../../model/app/identity.ts'
import { forbidden } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import { apiPort, findMachineOf } from '../../model/network.ts'
import { findIdentity } from '../../store/app/identity.ts'
import { type LiveContext, withDeadline } from '../context.ts'

/** For the machine at this address. */
export async function issueIdentity(
  ctx: Pick<LiveContext, 'db' | 'settings' | 'identityKey'>,
  address: string,
  wish: IdentityWish,
): Promise<string> {
  const place = findMachineOf(ctx.settings.homeNumber, address)
  const identity = place && (await findIdentity(ctx.db, place.networkNumber, place.slot))
  if (!identity)
    throw forbidden(`only machines have identities: ask at http://_api.internal:${apiPort} from inside of one`)
  const about = { issuer: ctx.settings.issuer(), now: Math.floor(Date.now() / 1000), id: newId() }
  return signToken(await openKey(ctx), identityClaims(identity, wish, about))
}

export async function listIdentityKeys(ctx: Pick<LiveContext, 'identityKey'>) {
  return { keys: [publicJwk(await openKey(ctx))] }
}

/** The first time it is made, which takes a moment. */
function openKey(ctx: Pick<LiveContext, 'identityKey'>): Promise<KeyObject> {
  return withDeadline(ctx.identityKey(), 'the key')
}
