import { backupStates } from '../../model/postgres/backup.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { lastLsn, parseLsn } from '../../model/postgres/wal.ts'
import { releaseBase } from '../../store/postgres/restore.ts'
import {
  type ArchiveNeed,
  isBaseExpired,
  listArchiveNeeds,
  listExpiredBackups,
  markPinnedAlone,
  removeEpoch,
} from '../../store/postgres/retention.ts'
import { transition } from '../../store/transition.ts'
import type { World } from '../step.ts'

/** Removes backups and WAL that neither the recovery window nor a pin nor a restore needs. */
export async function applyRetention(cluster: Cluster, world: World): Promise<void> {
  const days = cluster.retentionDays ?? world.keep.pitrDays
  const expired = await listExpiredBackups(world.db, cluster.id, days)
  for (const id of expired) {
    // Checked again under the row lock, because a restore may have pinned the backup since.
    await world.db.transaction(async (tx) => {
      const unneeded = await listExpiredBackups(tx, cluster.id, days, id)
      if (unneeded.length === 1) await transition(tx, 'backup', backupStates, id, 'expire')
    })
  }
  if (await isBaseExpired(world.db, cluster.id, days)) {
    await world.db.transaction((tx) => releaseBase(tx, cluster.id))
  }
  await markPinnedAlone(world.db, cluster.id, days)
  for (const need of await listArchiveNeeds(world.db, cluster.id)) await trim(cluster, need, world)
}

async function trim(cluster: Cluster, need: ArchiveNeed, { db, repository }: World): Promise<void> {
  if (need.isBusy) return
  const kept = need.kept.map(({ from, to }) => ({ from: parseLsn(from), to: parseLsn(to) }))
  if (need.fromLsn !== null) {
    await repository.removeWalBefore(cluster.id, need.epoch, parseLsn(need.fromLsn), kept)
  } else if (need.hasEnded && kept.length > 0) {
    await repository.removeWalBefore(cluster.id, need.epoch, lastLsn, kept)
  } else if (need.hasEnded) {
    await repository.removeArchive(cluster.id, need.epoch)
    await db.transaction((tx) => removeEpoch(tx, cluster.id, need.epoch))
  }
}
