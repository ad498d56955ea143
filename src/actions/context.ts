import { requireCaller, requireSandboxCaller } from '../model/account/caller.ts'
import type { Attenuation } from '../model/account/macaroon.ts'
import type { Caller } from '../model/account/token.ts'
import type { PlatformSettings } from '../model/settings.ts'
import { findCaller, findToken } from '../store/account/token.ts'
import type { Db } from '../store/db.ts'

/** What actions get from the API for each request. */
export interface Context {
  db: Db
  /** The API that received the request; sandbox tokens are valid only for the sandbox API. */
  area: 'platform' | 'sandbox'
  /** SHA-256 of the token. The SQL statements of the request check whether it is valid. */
  tokenHash: Buffer
  /** What was appended to the token after it was issued. Undefined: the stored row of the token is all that limits it. */
  attenuation: Attenuation | undefined
  settings: PlatformSettings
  /** The key that encrypts secrets in the state database. */
  encryptionKey: Buffer
}

/** Reads the caller, for actions that need it before their own statements. */
export async function getCaller(ctx: Pick<Context, 'db' | 'area' | 'tokenHash'>): Promise<Caller> {
  const caller = await findCaller(ctx.db, ctx.tokenHash)
  return ctx.area === 'sandbox' ? requireSandboxCaller(caller) : requireCaller(caller)
}

/** Throws 401 unless the token is valid for this API, so that callers without one get no other error. */
export async function requireToken(ctx: Pick<Context, 'db' | 'area' | 'tokenHash'>): Promise<Caller> {
  const caller = await findToken(ctx.db, ctx.tokenHash)
  return ctx.area === 'sandbox' ? requireSandboxCaller(caller) : requireCaller(caller)
}

/**
 * Runs checks that need no database. Before a validation error is reported the token is checked, so that callers without a
 * valid token see only a 401.
 */
export async function checked<T>(ctx: Context, check: () => T): Promise<T> {
  try {
    return check()
  } catch (refusal) {
    await requireToken(ctx)
    throw refusal
  }
}
