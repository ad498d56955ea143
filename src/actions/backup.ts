import { requireClusterWriter } from '../model/caller.ts'
import { conflict, invalid } from '../model/errors.ts'
import { listBackups, queueBackup } from '../store/backup.ts'
import { getVisibleCluster } from '../store/cluster.ts'
import type { Context } from './context.ts'

export async function listBackupsOf(ctx: Context, clusterId: string) {
  const { cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  return listBackups(ctx.db, cluster.id)
}

export async function createBackup(ctx: Context, clusterId: string): Promise<void> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  requireClusterWriter(caller)
  if (cluster.state !== 'ready') throw invalid(`Cluster is ${cluster.state}; it can be backed up once it is ready`)
  await ctx.db.transaction(async (tx) => {
    if (!(await queueBackup(tx, cluster.id))) throw conflict('backup already in progress')
  })
}
