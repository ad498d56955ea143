// Looks whether what was found missing or damaged is intact again, because somebody has put it back.
import type { Cluster } from '../../model/postgres/cluster.ts'
import { parseLsn } from '../../model/postgres/wal.ts'
import {
  forgetHole,
  listDamagedBackups,
  listHolesToCheck,
  setHoleChecked,
  setMissing,
} from '../../store/postgres/repair.ts'
import type { World } from '../step.ts'

export async function findRepairs(cluster: Cluster, world: World): Promise<void> {
  await findRepairedWal(cluster, world)
  await findReturnedBackups(cluster, world)
}

async function findRepairedWal({ id }: Cluster, { db, repository }: World): Promise<void> {
  for (const hole of await listHolesToCheck(db, id)) {
    const { epoch, timeline, fromLsn, toLsn } = hole
    const range = { timeline, from: parseLsn(fromLsn), to: parseLsn(toLsn) }
    if (await repository.isIntact(id, epoch, range)) await db.transaction((tx) => forgetHole(tx, hole))
    else await setHoleChecked(db, hole.id)
  }
}

/** A scrub verifies it at once. A backup that is damaged, but there, is verified again from time to time. */
async function findReturnedBackups({ id }: Cluster, { db, repository }: World): Promise<void> {
  for (const backup of await listDamagedBackups(db, id)) {
    const isMissing = (await repository.findMissingBackup(id, backup.label)) !== undefined
    if (isMissing !== backup.isMissing) await setMissing(db, backup.id, isMissing)
  }
}
