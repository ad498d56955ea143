import type { LiveContext } from '../context.ts'
import { getReadyCluster } from './cluster.ts'

/** Removes the damaged data directories that recoveries have kept. */
export async function discardDamagedData(ctx: LiveContext, clusterId: string): Promise<string[]> {
  const { id } = await getReadyCluster(ctx, clusterId, 'write')
  return ctx.postgres.data.removeAside(id)
}
