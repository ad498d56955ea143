import { firstOrg } from '../model/account/org.ts'
import { type QuotaLimits, standardQuotas } from '../model/account/quota.ts'
import { hashToken } from '../model/account/token.ts'
import { insertOrgOnce } from '../store/account/org.ts'
import { putQuotaDefaults } from '../store/account/quota.ts'
import { putRootToken } from '../store/account/token.ts'
import type { Db } from '../store/db.ts'

/** Creates the organization `personal` and the root token, and stores the default quotas, at every start. */
export async function prepareFirstUse(
  db: Db,
  rootToken: string,
  quotas: QuotaLimits = standardQuotas(),
): Promise<void> {
  await putQuotaDefaults(db, quotas)
  await insertOrgOnce(db, firstOrg, 'Personal')
  const other = await putRootToken(db, hashToken(rootToken))
  if (other !== undefined) {
    throw new Error(
      `the configured root token is already in use as token ${other}, which was created over the API; ` +
        'start with another BERTH_TOKEN, or without one to use the generated token',
    )
  }
}
