import { requireCaller, requireWriter } from '../../model/account/caller.ts'
import type { Caller } from '../../model/account/token.ts'
import { type AppSummary, appNamePattern } from '../../model/app/app.ts'
import { forbidden, notFound } from '../../model/errors.ts'
import { findToken } from '../account/token.ts'
import type { Db } from '../db.ts'
import { findApp } from './app.ts'

/** App names are global: an app of another organization is a 403, and a 404 means that the name is free. */
export async function getVisibleApp(
  db: Db,
  tokenHash: Buffer,
  name: string,
): Promise<{ caller: Caller; app: AppSummary }> {
  if (!appNamePattern.test(name)) {
    requireCaller(await findToken(db, tokenHash))
    throw appNotFound()
  }
  const found = await findApp(db, tokenHash, name)
  const caller = requireCaller(found?.caller)
  if (!found?.app) throw appNotFound()
  if (caller.orgId !== null && caller.orgId !== found.app.orgId) throw forbidden('unauthorized')
  return { caller, app: found.app }
}

/** Throws unless the caller may change the app. */
export async function getWritableApp(db: Db, tokenHash: Buffer, name: string): Promise<AppSummary> {
  const { caller, app } = await getVisibleApp(db, tokenHash, name)
  requireWriter(caller)
  return app
}

export function appNotFound() {
  return notFound('app not found')
}
