import type { PooledSessions } from '../../drivers/postgres/pooler/session.ts'
import { poolerSpec } from '../../drivers/postgres/spec.ts'
import { listOpenDatabases } from '../../drivers/postgres/sql/database.ts'
import { BerthError, unavailable } from '../../model/errors.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { type LiveContext, withDeadline } from '../context.ts'

/** The databases that it leads to are those that are there now. */
export async function tellPooler({ postgres, pooler, hosting }: LiveContext, cluster: Cluster): Promise<void> {
  const databases = await listOpenDatabases(postgres, cluster.id)
  await reached(pooler.ensurePooler(cluster.id, poolerSpec(cluster, hosting, databases)))
}

/** What clients have open through the pooler; what the server has open is ended by whoever changes it. */
export async function endPooled(
  { pooler, hosting }: LiveContext,
  cluster: Cluster,
  which: PooledSessions,
): Promise<void> {
  const address = { listen: hosting.listen, port: cluster.poolerPort! }
  await reached(pooler.endSessions(cluster.id, address, which))
}

/** What keeps it from being told, such as a supervisor that is away or a full disk, passes; the loop tells it then. */
async function reached(work: Promise<void>): Promise<void> {
  try {
    await withDeadline(work, 'the pooler')
  } catch (err) {
    throw err instanceof BerthError ? err : unavailable('The pooler does not answer at the moment', err)
  }
}
