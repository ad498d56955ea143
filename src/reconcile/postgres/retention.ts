import { backupStates } from '../../model/postgres/backup.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { lastLsn, parseLsn } from '../../model/postgres/wal.ts'
import {
  type ArchiveNeed,
  listArchiveNeeds,
  listExpiredBackups,
  removeEpoch,
  separatePinned,
} from '../../store/postgres/retention.ts'
import { transition } from '../../store/transition.ts'
import type { World } from '../step.ts'

/** Removes what no moment in the window, no pin and no restore needs. */
export async function applyRetention(cluster: Cluster, world: World): Promise<void> {
  const expired = await listExpiredBackups(world.db, cluster.id, world.keep.pitrDays)
  for (const id of expired) {
    // Under the lock of its row it is looked at again: a restore may have pinned it since.
    await world.db.transaction(async (tx) => {
      const still = await listExpiredBackups(tx, cluster.id, world.keep.pitrDays, id)
      if (still.length === 1) await transition(tx, 'backup', backupStates, id, 'expire')
    })
  }
  await separatePinned(world.db, cluster.id, world.keep.pitrDays)
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
