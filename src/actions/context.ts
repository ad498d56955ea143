import { requireCaller } from '../model/caller.ts'
import type { PlatformSettings } from '../model/settings.ts'
import type { Caller } from '../model/token.ts'
import type { Db } from '../store/db.ts'
import { findCaller } from '../store/token.ts'

/** Who is asking, and what with. Built once per request by the API. */
export interface Context {
  db: Db
  /** SHA-256 of the token. Whether it is valid is asked in the statement that answers the request. */
  tokenHash: Buffer
  settings: PlatformSettings
  /** Encrypts what is secret in the state database. */
  encryptionKey: Buffer
}

/** For actions that need to know the caller before their own statements. */
export async function getCaller(ctx: Pick<Context, 'db' | 'tokenHash'>): Promise<Caller> {
  return requireCaller(await findCaller(ctx.db, ctx.tokenHash))
}

/**
 * Checks what needs no look at the database. A caller without a valid token learns nothing about the fields: a refusal
 * is preceded by the check of the token.
 */
export async function checked<T>(ctx: Context, check: () => T): Promise<T> {
  try {
    return check()
  } catch (refusal) {
    await getCaller(ctx)
    throw refusal
  }
}
