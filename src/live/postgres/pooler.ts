import type { PooledSessions } from '../../drivers/postgres/pooler/driver.ts'
import { BerthError, unavailable } from '../../model/errors.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { askCluster } from './cluster.ts'

/** Ends client sessions at the pooler; sessions at the server are ended by the change itself. */
export async function endPooledSessions(ctx: LiveContext, cluster: Cluster, sessions: PooledSessions): Promise<void> {
  const address = { listen: ctx.hosting.listen, port: cluster.poolerPort! }
  await askCluster(ctx, cluster, asUnavailable(ctx.pooler.endSessions(cluster.id, address, sessions)))
}

/** Failures here are temporary, such as a missing supervisor. */
async function asUnavailable(work: Promise<void>): Promise<void> {
  try {
    await withDeadline(work, 'the pooler')
  } catch (err) {
    throw err instanceof BerthError ? err : unavailable('The pooler does not answer at the moment', err)
  }
}
