import { poolerSpec } from '../drivers/cluster-spec.ts'
import type { PooledSessions } from '../drivers/pooler-session.ts'
import { listOpenDatabases } from '../drivers/postgres-database.ts'
import type { Cluster } from '../model/cluster.ts'
import { type LiveContext, withDeadline } from './context.ts'

/** The databases that it leads to are those that are there now. */
export async function tellPooler({ postgres, pooler, hosting }: LiveContext, cluster: Cluster): Promise<void> {
  const databases = await listOpenDatabases(postgres, cluster.id)
  await withDeadline(pooler.ensurePooler(cluster.id, poolerSpec(cluster, hosting, databases)), 'the pooler')
}

/** What clients have open through the pooler; what the server has open is ended by whoever changes it. */
export async function endPooled(
  { pooler, hosting }: LiveContext,
  cluster: Cluster,
  which: PooledSessions,
): Promise<void> {
  const address = { listen: hosting.listen, port: cluster.poolerPort! }
  await withDeadline(pooler.endSessions(cluster.id, address, which), 'the pooler')
}
