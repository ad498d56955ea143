import { type OrgQuotas, tooManySockets } from '../model/account/quota.ts'
import { findSocketLimit } from '../store/account/quota.ts'
import type { Db } from '../store/db.ts'

/**
 * Counts the open WebSockets, streams and waiting requests of each organization. The state is per process, because a
 * connection ends with its process.
 */
export interface OpenConnections {
  /** Counts a connection of the token's organization until the result is called. Throws 429 when it has too many. */
  take(db: Pick<Db, 'read'>, tokenHash: Buffer): Promise<() => void>
  count(orgId: string): number
}

export function createOpenConnections(): OpenConnections {
  const open = new Map<string, number>()
  const count = (orgId: string) => open.get(orgId) ?? 0

  function release(orgId: string): void {
    if (count(orgId) > 1) open.set(orgId, count(orgId) - 1)
    else open.delete(orgId)
  }

  return {
    async take(db, tokenHash) {
      const found = await findSocketLimit(db, tokenHash)
      if (!found) return () => {}
      const { orgId, slug, limit } = found
      if (limit !== null && count(orgId) >= limit) throw tooManySockets(slug, limit)
      open.set(orgId, count(orgId) + 1)
      let isReleased = false
      return () => {
        if (!isReleased) release(orgId)
        isReleased = true
      }
    },
    count,
  }
}

/** Adds the number of open connections, which the database does not have. */
export function withConnections(connections: OpenConnections, organization: OrgQuotas): OrgQuotas {
  const { orgId, quotas } = organization
  const used = connections.count(orgId)
  return { ...organization, quotas: quotas.map((quota) => (quota.name === 'sockets' ? { ...quota, used } : quota)) }
}
