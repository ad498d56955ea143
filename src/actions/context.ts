import { requireCaller, requireSandboxCaller } from '../model/account/caller.ts'
import type { Caller } from '../model/account/token.ts'
import type { PlatformSettings } from '../model/settings.ts'
import { findCaller, findToken } from '../store/account/token.ts'
import type { Db } from '../store/db.ts'

/** Who is asking, and what with. Built once per request by the API. */
export interface Context {
  db: Db
  /** The address that was asked; tokens of one sandbox count on theirs only. */
  area: 'platform' | 'sandbox'
  /** SHA-256 of the token. Whether it is valid is asked in the statement that answers the request. */
  tokenHash: Buffer
  settings: PlatformSettings
  /** Encrypts what is secret in the state database. */
  encryptionKey: Buffer
}

/** For actions that need to know the caller before their own statements. */
export async function getCaller(ctx: Pick<Context, 'db' | 'area' | 'tokenHash'>): Promise<Caller> {
  const caller = await findCaller(ctx.db, ctx.tokenHash)
  return ctx.area === 'sandbox' ? requireSandboxCaller(caller) : requireCaller(caller)
}

/** That the token is valid, whatever it is for: whoever has none learns nothing of why a request is refused. */
export async function requireToken(ctx: Pick<Context, 'db' | 'area' | 'tokenHash'>): Promise<Caller> {
  const caller = await findToken(ctx.db, ctx.tokenHash)
  return ctx.area === 'sandbox' ? requireSandboxCaller(caller) : requireCaller(caller)
}

/**
 * Checks what needs no look at the database. A caller without a valid token learns nothing about the fields: a refusal
 * is preceded by the check of the token.
 */
export async function checked<T>(ctx: Context, check: () => T): Promise<T> {
  try {
    return check()
  } catch (refusal) {
    await requireToken(ctx)
    throw refusal
  }
}
