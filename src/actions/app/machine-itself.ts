import { hashToken, insideToken } from '../../model/account/token.ts'
import { unauthorized } from '../../model/errors.ts'
import { parseMachineAddress } from '../../model/network.ts'
import { ensureMachineToken, findMachineBySlot } from '../../store/app/inside.ts'
import type { Context } from '../context.ts'

/**
 * Returns the hash of the token of the machine at this address, for requests without a token about the machine itself. It
 * is a token of the machine's app, so requests about anything else are rejected here.
 */
export async function getMachineToken(
  ctx: Pick<Context, 'db' | 'settings' | 'encryptionKey'>,
  address: string,
  asked: { app_name: string; machine_id: string },
): Promise<Buffer> {
  const place = parseMachineAddress(ctx.settings.homeNumber, address)
  const itself = place && (await findMachineBySlot(ctx.db, place.networkNumber, place.slot))
  if (!itself || itself.appName !== asked.app_name || itself.machineId !== asked.machine_id)
    throw unauthorized('missing token: without one a machine may access only itself')
  const hash = hashToken(insideToken(ctx.encryptionKey, itself.machineId))
  await ensureMachineToken(ctx.db, itself, hash)
  return hash
}
