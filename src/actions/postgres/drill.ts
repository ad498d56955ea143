import { requireClusterWriter } from '../../model/account/caller.ts'
import { conflict, invalid } from '../../model/errors.ts'
import { requireReady } from '../../model/postgres/cluster.ts'
import { type CreateDrill, presentQuery } from '../../model/postgres/drill.ts'
import { getVisibleCluster, lockKeptCluster } from '../../store/postgres/cluster.ts'
import { type ListedDrill, listDrills, queueDrill, setDrillQuery } from '../../store/postgres/drill.ts'
import { hasWindow } from '../../store/postgres/stretch.ts'
import type { Context } from '../context.ts'

export async function listDrillsOf(ctx: Context, clusterId: string): Promise<ListedDrill[]> {
  const { cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  return listDrills(ctx.db, cluster.id)
}

export async function createDrill(ctx: Context, clusterId: string, input: CreateDrill): Promise<void> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  requireClusterWriter(caller)
  requireReady(cluster, 'a drill can run')
  if (!(await hasWindow(ctx.db, cluster.id))) throw invalid('a drill is unavailable: no backup has completed yet')
  await ctx.db.transaction(async (tx) => {
    await lockKeptCluster(tx, cluster.id)
    if (!(await queueDrill(tx, cluster.id))) throw conflict('drill already in progress')
    if (input.drill_query !== undefined) await setDrillQuery(tx, cluster.id, presentQuery(input.drill_query))
  })
}
