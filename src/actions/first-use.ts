import { firstOrg } from '../model/account/org.ts'
import { hashToken } from '../model/account/token.ts'
import { insertOrgOnce } from '../store/account/org.ts'
import { putRootToken } from '../store/account/token.ts'
import type { Db } from '../store/db.ts'

/** Creates the organization `personal` and the root token. */
export async function prepareFirstUse(db: Db, rootToken: string): Promise<void> {
  await insertOrgOnce(db, firstOrg, 'Personal')
  await putRootToken(db, hashToken(rootToken))
}
