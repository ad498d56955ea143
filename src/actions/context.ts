import { forbidden, unauthorized } from '../model/errors.ts'
import type { Caller } from '../model/token.ts'
import type { Db } from '../store/db.ts'
import { findCaller } from '../store/token.ts'

/** Who is asking, and what with. Built once per request by the API. */
export interface Context {
  db: Db
  /** SHA-256 of the token. Whether it is valid is asked in the statement that answers the request. */
  tokenHash: Buffer
}

/** For actions that need to know the caller before their own statements. */
export async function getCaller(ctx: Context): Promise<Caller> {
  return requireCaller(await findCaller(ctx.db, ctx.tokenHash))
}

/** A sandbox token opens nothing on the platform address, so there it is as good as none. */
export function requireCaller(caller: Caller | undefined): Caller {
  if (!caller || caller.kind === 'sandbox') throw unauthorized('invalid token')
  return caller
}

export function requireWriter(caller: Caller): void {
  if (caller.kind === 'read') throw forbidden('this token may only read')
}
