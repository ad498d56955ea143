import type { ClusterDescription } from '../../drivers/repository/driver.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { toRfc3339 } from '../../model/time.ts'
import { listArchives } from '../../store/postgres/archive.ts'
import { findOrgSlug, loadCluster } from '../../store/postgres/cluster.ts'
import { listPinned, markDescribed } from '../../store/postgres/cluster-describe.ts'
import { findRestore } from '../../store/postgres/restore.ts'
import { listClockChanges } from '../../store/postgres/stretch.ts'
import type { World } from '../step.ts'

/** Stores in the repository what cannot be derived from the backups there. */
export async function keepDescribed(cluster: Cluster, world: World): Promise<void> {
  const { id, undescribedSince } = cluster
  if (undescribedSince === null) return
  await world.repository.describeCluster(id, await describe(cluster, world))
  await markDescribed(world.db, id, undescribedSince)
}

/** For a cluster that was changed since it was loaded. */
export async function describeNow({ id }: Cluster, world: World): Promise<void> {
  const cluster = await loadCluster(world.db, id)
  if (cluster) await keepDescribed(cluster, world)
}

async function describe(cluster: Cluster, { db }: World): Promise<ClusterDescription> {
  const { id, drillQuery, retentionDays, maintenanceWindow } = cluster
  const restore = await findRestore(db, id)
  const epochs = await listArchives(db, id)
  const changed = await listClockChanges(db, id)
  return {
    drillQuery,
    retentionDays,
    maintenanceWindow,
    pinned: await listPinned(db, id),
    clusterId: id,
    clusterName: cluster.name,
    orgSlug: await findOrgSlug(db, cluster.orgId),
    pgMajor: cluster.pgMajor,
    createdAt: toRfc3339(cluster.createdAt),
    settings: settingsOf(cluster),
    epochs: epochs.map(({ epoch, timeline, startLsn, startedAt, base }) => {
      const clock = changed.includes(epoch) && { isClockChanged: true }
      return { epoch, timeline, startLsn, startedAt: toRfc3339(startedAt), base, ...clock }
    }),
    ...(restore && {
      origin: {
        clusterId: restore.sourceClusterId,
        purpose: restore.purpose,
        backupId: restore.backupId,
        time: restore.pitrTime === null ? null : toRfc3339(restore.pitrTime),
      },
    }),
  }
}

/** The settings from which adoption recreates a cluster. */
export function settingsOf(cluster: Cluster): Record<string, unknown> {
  return {
    plan: cluster.plan,
    diskSizeGb: cluster.diskSizeGb,
    region: cluster.region,
    postgisEnabled: cluster.postgisEnabled,
    extensions: cluster.extensions,
    poolMode: cluster.poolMode,
    synchronousArchive: cluster.synchronousArchive,
    toolchain: cluster.toolchain,
  }
}
