import type { Cluster } from '../../model/postgres/cluster.ts'
import { listPinned, markDescribed } from '../../store/postgres/cluster-describe.ts'
import type { World } from '../step.ts'

/** Stores in the repository what cannot be derived from the backups there. */
export async function keepDescribed(cluster: Cluster, { db, repository }: World): Promise<void> {
  const { id, drillQuery, retentionDays, undescribedSince } = cluster
  if (undescribedSince === null) return
  await repository.describeCluster(id, { drillQuery, retentionDays, pinned: await listPinned(db, id) })
  await markDescribed(db, id, undescribedSince)
}
