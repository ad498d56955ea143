import { requireCaller, requireFullToken } from '../../model/account/caller.ts'
import { hashToken, newTokenText, rootTokenId } from '../../model/account/token.ts'
import { conflict, forbidden } from '../../model/errors.ts'
import { findCaller, putRootToken } from '../../store/account/token.ts'
import type { LiveContext } from '../context.ts'

/**
 * Replaces the configured root token. The file is written before the transaction commits: if the process dies in between,
 * the next start stores the token of the file, so that its reader is never locked out.
 */
export async function rotateRootToken(ctx: LiveContext): Promise<{ id: string; token: string; kind: 'root' }> {
  const caller = requireCaller(await findCaller(ctx.db, ctx.tokenHash))
  requireFullToken(ctx)
  if (caller.kind !== 'root') throw forbidden('only a root token may replace the root token')
  const { writeRootToken } = ctx
  if (!writeRootToken) throw conflict('the root token is set by BERTH_TOKEN; change it there and restart "berth up"')
  const token = newTokenText()
  await ctx.db.transaction(async (tx) => {
    await putRootToken(tx, hashToken(token))
    writeRootToken(token)
  })
  return { id: rootTokenId, token, kind: 'root' }
}
