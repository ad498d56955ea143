import { firstOrg } from '../model/account/org.ts'
import { hashToken } from '../model/account/token.ts'
import { insertOrgOnce } from '../store/account/org.ts'
import { putRootToken } from '../store/account/token.ts'
import type { Db } from '../store/db.ts'

/** Creates the organization `personal` and the root token. */
export async function prepareFirstUse(db: Db, rootToken: string): Promise<void> {
  await insertOrgOnce(db, firstOrg, 'Personal')
  const other = await putRootToken(db, hashToken(rootToken))
  if (other !== undefined) {
    throw new Error(
      `the configured root token is already in use as token ${other}, which was created over the API; ` +
        'start with another BERTH_TOKEN, or without one to use the generated token',
    )
  }
}
