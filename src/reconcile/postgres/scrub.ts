import type { Toolchain } from '../../drivers/postgres/toolchain/toolchain.ts'
import { type Cluster, degraded, type Health } from '../../model/postgres/cluster.ts'
import { formatLsn, type Lsn, parseLsn, segmentName, segmentNumber, segmentStart } from '../../model/postgres/wal.ts'
import { findBackupFailure } from '../../store/postgres/backup.ts'
import { setHealth } from '../../store/postgres/cluster.ts'
import {
  breakEpoch,
  claimScrub,
  findNeededLog,
  findUnreplacedDamage,
  finishScrub,
  readScrubs,
  type ScrubbedBackup,
} from '../../store/postgres/scrub.ts'
import { type World, wait } from '../step.ts'

/** Reads a kept backup again when its time has come. Undefined while there is nothing to say. */
export async function keepScrubbed(cluster: Cluster, world: World) {
  const { db, backups, keep } = world
  const { running, due, isFree } = await readScrubs(db, cluster.id, keep.scrubIntervalSeconds)
  if (running) return lookAtScrub(cluster, running, world)
  if (!due || !isFree) return undefined
  // What another one left, such as of a backup that was removed meanwhile, would be taken for the answer.
  await backups.removeScrub(cluster.id)
  if (await db.transaction((tx) => claimScrub(tx, due.id))) await startScrub(cluster, due, world)
  return undefined
}

function startScrub(cluster: Cluster, { label }: ScrubbedBackup, { backups }: World): Promise<void> {
  return backups.startScrub(cluster.id, label, cluster.toolchain as Toolchain)
}

async function lookAtScrub(cluster: Cluster, backup: ScrubbedBackup, world: World) {
  const { backups } = world
  const seen = await backups.inspectScrub(cluster.id)
  if (seen.is === 'running') return undefined
  if (seen.is === 'absent' || seen.is === 'interrupted') {
    await backups.removeScrub(cluster.id)
    await startScrub(cluster, backup, world)
    return undefined
  }
  const damage = seen.is === 'failed' ? seen.reason : null
  const hole = await findHole(cluster, world)
  const health = damage === null ? hole?.health : damaged({ label: backup.label, damage })
  // Before the result is written: if that does not come to pass, the backup is read once more.
  await backups.removeScrub(cluster.id)
  return wait(0, health?.reason ?? `backup ${backup.label} is sound`, async (tx) => {
    await finishScrub(tx, backup.id, damage)
    if (hole) await breakEpoch(tx, cluster.id, hole.epoch, hole.lsn)
    if (health) await setHealth(tx, cluster.id, health)
  })
}

/** What is wrong with the backups, until a new one takes the place of a damaged or a failed one. */
export async function findBackupProblem(cluster: Cluster, { db, keep }: World): Promise<Health | undefined> {
  const damage = await findUnreplacedDamage(db, cluster.id)
  if (damage) return damaged(damage)
  const last = await findBackupFailure(db, cluster.id, keep.backupIntervalSeconds)
  return last && degraded(`backup ${last.label} failed: ${last.failure}`)
}

function damaged({ label, damage }: { label: string; damage: string }): Health {
  return degraded(`backup ${label} is damaged, and a new one follows: ${damage}`)
}

interface Hole {
  epoch: number
  lsn: string
  health: Health
}

/** The first segment that is missing between the oldest backup and the newest edge of the window. */
async function findHole(cluster: Cluster, { db, repository }: World): Promise<Hole | undefined> {
  const log = await findNeededLog(db, cluster.id)
  if (!log) return undefined
  const from = parseLsn(log.fromLsn)
  const findEnd = () => repository.archiveEnd(cluster.id, log.epoch, log.timeline, from)
  const isReached = (end: Lsn | undefined) => end !== undefined && end >= parseLsn(log.toLsn)
  if (isReached(await findEnd())) return undefined
  // An epoch is not ended for a listing that the receiver disturbed by renaming a segment.
  const end = await findEnd()
  if (isReached(end)) return undefined
  const hole = end ?? segmentStart(segmentNumber(from))
  const name = segmentName(log.timeline, segmentNumber(hole))
  const reason = `WAL segment ${name} is missing in the archive, which is started anew; a backup follows`
  return { epoch: log.epoch, lsn: formatLsn(hole), health: degraded(reason) }
}
