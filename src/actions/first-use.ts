import { firstOrg } from '../model/account/org.ts'
import { hashToken } from '../model/account/token.ts'
import { insertOrgOnce } from '../store/account/org.ts'
import { putRootToken } from '../store/account/token.ts'
import type { Db } from '../store/db.ts'

/** What a platform has before anyone asks for anything: the organization `personal` and the root token. */
export async function prepareFirstUse(db: Db, rootToken: string): Promise<void> {
  await insertOrgOnce(db, firstOrg, 'Personal')
  await putRootToken(db, hashToken(rootToken))
}
