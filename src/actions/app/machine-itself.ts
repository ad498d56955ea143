import { hashToken, insideToken } from '../../model/account/token.ts'
import { unauthorized } from '../../model/errors.ts'
import { findMachineOf } from '../../model/network.ts'
import { ensureMachineToken, findItself } from '../../store/app/inside.ts'
import type { Context } from '../context.ts'

/**
 * The token of the machine at this address, for what it asks about itself and nobody else. It is one of its app, so that
 * there is one way of being allowed something: what it is not to be used for is refused here.
 */
export async function takeOwnToken(
  ctx: Pick<Context, 'db' | 'settings' | 'encryptionKey'>,
  address: string,
  asked: { app_name: string; machine_id: string },
): Promise<Buffer> {
  const place = findMachineOf(ctx.settings.homeNumber, address)
  const itself = place && (await findItself(ctx.db, place.networkNumber, place.slot))
  if (!itself || itself.appName !== asked.app_name || itself.machineId !== asked.machine_id)
    throw unauthorized('missing token: without one a machine may ask only about itself')
  const hash = hashToken(insideToken(ctx.encryptionKey, itself.machineId))
  await ensureMachineToken(ctx.db, itself, hash)
  return hash
}
