import { firstOrg } from '../model/org.ts'
import { hashToken } from '../model/token.ts'
import type { Db } from '../store/db.ts'
import { insertOrgOnce } from '../store/org.ts'
import { putRootToken } from '../store/token.ts'

/** What a platform has before anyone asks for anything: the organization `personal` and the root token. */
export async function prepareFirstUse(db: Db, rootToken: string): Promise<void> {
  await insertOrgOnce(db, firstOrg, 'Personal')
  await putRootToken(db, hashToken(rootToken))
}
