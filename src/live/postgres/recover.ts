import type { LiveContext } from '../context.ts'
import { getReadyCluster } from './cluster.ts'

/** Removes the damaged data directories that recoveries have kept. */
export async function discardDamagedData(ctx: LiveContext, clusterId: string): Promise<string[]> {
  const { id } = await getReadyCluster(ctx, clusterId, 'write')
  const names = ctx.postgres.data.listAside(id)
  // A recovery that has begun since keeps what it moves aside.
  await getReadyCluster(ctx, clusterId, 'write')
  ctx.postgres.data.removeAside(id, names)
  return names
}
