import { type LiveQuota, type OrgQuotas, tooManyOpen } from '../model/account/quota.ts'
import { findSocketLimit, type OrgLimit } from '../store/account/quota.ts'
import type { Db } from '../store/db.ts'

/**
 * Counts what each organization keeps open: WebSockets, streams, waiting requests and running commands. The state is per
 * process, because all of these end with their process.
 */
export interface OpenConnections {
  /** Counts a connection of the token's organization until the result is called. Throws 429 when it has too many. */
  take(db: Pick<Db, 'read'>, tokenHash: Buffer): Promise<() => void>
  /** Counts one more of the quota until the result is called. Throws 429 when the organization has too many. */
  hold(quota: LiveQuota, limit: OrgLimit): () => void
  count(quota: LiveQuota, orgId: string): number
}

export function createOpenConnections(): OpenConnections {
  const open = new Map<string, number>()
  const count = (key: string) => open.get(key) ?? 0

  function add(key: string, amount: 1 | -1): void {
    const sum = count(key) + amount
    if (sum > 0) open.set(key, sum)
    else open.delete(key)
  }

  function hold(quota: LiveQuota, { orgId, slug, limit }: OrgLimit): () => void {
    const key = `${quota} ${orgId}`
    if (limit !== null && count(key) >= limit) throw tooManyOpen(quota, slug, limit)
    add(key, 1)
    let isHeld = true
    return () => {
      if (isHeld) add(key, -1)
      isHeld = false
    }
  }

  return {
    async take(db, tokenHash) {
      const limit = await findSocketLimit(db, tokenHash)
      return limit ? hold('sockets', limit) : () => {}
    },
    hold,
    count: (quota, orgId) => count(`${quota} ${orgId}`),
  }
}

const liveQuotas: readonly string[] = ['sockets', 'commands'] satisfies LiveQuota[]

/** Adds the numbers that the database does not have. */
export function withConnections(connections: OpenConnections, organization: OrgQuotas): OrgQuotas {
  const quotas = organization.quotas.map((quota) => {
    const isLive = liveQuotas.includes(quota.name)
    return isLive ? { ...quota, used: connections.count(quota.name as LiveQuota, organization.orgId) } : quota
  })
  return { ...organization, quotas }
}
