import { requireClusterWriter } from '../../model/account/caller.ts'
import { conflict, invalid, notFound } from '../../model/errors.ts'
import type { Backup } from '../../model/postgres/backup.ts'
import { requireReady } from '../../model/postgres/cluster.ts'
import { labelTime } from '../../model/postgres/restore.ts'
import { findBackupByLabel, listBackups, queueBackup, setPinned } from '../../store/postgres/backup.ts'
import { getVisibleCluster, lockKeptCluster } from '../../store/postgres/cluster.ts'
import type { Context } from '../context.ts'

export async function listBackupsOf(ctx: Context, clusterId: string) {
  const { cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  return listBackups(ctx.db, cluster.id)
}

export async function createBackup(ctx: Context, clusterId: string): Promise<void> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  requireClusterWriter(caller)
  requireReady(cluster, 'it can be backed up')
  await ctx.db.transaction(async (tx) => {
    await lockKeptCluster(tx, cluster.id)
    if (!(await queueBackup(tx, cluster.id, true))) throw conflict('backup already in progress')
  })
}

/** Also works for deleted clusters, whose pinned backups are kept until they are unpinned. */
export async function pinBackup(ctx: Context, clusterId: string, label: string, pinned: boolean): Promise<Backup> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId, { deleted: true })
  requireClusterWriter(caller)
  // Invalid labels must not reach the database, which rejects NUL bytes with an error.
  const isLabel = labelTime(label) !== undefined
  const backup = isLabel ? await findBackupByLabel(ctx.db, cluster.id, label) : undefined
  if (!backup) throw notFound(`Backup ${label} not found for cluster ${cluster.id}`)
  return ctx.db.transaction(async (tx) => {
    const changed = await setPinned(tx, cluster.id, label, pinned)
    if (!changed) throw invalid(`backup ${label} is ${backup.state}; only a completed one can be pinned`)
    return changed
  })
}
