import { type Cluster, degraded, type Health } from '../../model/postgres/cluster.ts'
import { toolchainOf } from '../../model/postgres/spec.ts'
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

/** Starts or follows the periodic verification of a kept backup. Undefined while there is no result. */
export async function keepScrubbed(cluster: Cluster, world: World) {
  const { db, backups, keep } = world
  const { running, due, isFree } = await readScrubs(db, cluster.id, keep.scrubIntervalSeconds)
  if (running) return inspectScrub(cluster, running, world)
  if (!due || !isFree) return undefined
  // A leftover job, such as for a backup that was removed meanwhile, would be taken for the result.
  await backups.removeScrub(cluster.id)
  if (await db.transaction((tx) => claimScrub(tx, due.id))) await startScrub(cluster, due, world)
  return undefined
}

function startScrub(cluster: Cluster, { label }: ScrubbedBackup, { backups }: World): Promise<void> {
  return backups.startScrub(cluster.id, label, toolchainOf(cluster))
}

async function inspectScrub(cluster: Cluster, backup: ScrubbedBackup, world: World) {
  const { backups } = world
  const seen = await backups.inspectScrub(cluster.id)
  if (seen.is === 'running') return undefined
  if (seen.is === 'absent' || seen.is === 'interrupted') {
    await backups.removeScrub(cluster.id)
    await startScrub(cluster, backup, world)
    return undefined
  }
  const damage = seen.is === 'failed' ? seen.reason : null
  const gap = await findGap(cluster, world)
  const health = damage === null ? gap?.health : damaged({ label: backup.label, damage })
  // The job is removed before its result is stored: if storing fails, the backup is verified again.
  await backups.removeScrub(cluster.id)
  return wait(0, health?.reason ?? `backup ${backup.label} is verified`, async (tx) => {
    await finishScrub(tx, backup.id, damage)
    if (gap) await breakEpoch(tx, cluster.id, gap.epoch, gap.lsn)
    if (health) await setHealth(tx, cluster.id, health)
  })
}

/** Reports a damaged or failed backup until a newer one replaces it. */
export async function findBackupProblem(cluster: Cluster, { db, keep }: World): Promise<Health | undefined> {
  const damage = await findUnreplacedDamage(db, cluster.id)
  if (damage) return damaged(damage)
  const last = await findBackupFailure(db, cluster.id, keep.backupIntervalSeconds)
  return last && degraded(`backup ${last.label} failed: ${last.failure}`)
}

function damaged({ label, damage }: { label: string; damage: string }): Health {
  return degraded(`backup ${label} is damaged, and a new one follows: ${damage}`)
}

interface Gap {
  epoch: number
  lsn: string
  health: Health
}

/** Finds the first missing WAL segment between the oldest backup and the end of the recovery window. */
async function findGap(cluster: Cluster, { db, repository }: World): Promise<Gap | undefined> {
  const log = await findNeededLog(db, cluster.id)
  if (!log) return undefined
  const from = parseLsn(log.fromLsn)
  const findEnd = () => repository.archiveEnd(cluster.id, log.epoch, log.timeline, from)
  const isReached = (end: Lsn | undefined) => end !== undefined && end >= parseLsn(log.toLsn)
  if (isReached(await findEnd())) return undefined
  // Checked twice, because the receiver may rename a segment during the listing.
  const end = await findEnd()
  if (isReached(end)) return undefined
  const gapLsn = end ?? segmentStart(segmentNumber(from))
  const name = segmentName(log.timeline, segmentNumber(gapLsn))
  const reason = `WAL segment ${name} is missing from the archive; archiving restarts, and a backup follows`
  return { epoch: log.epoch, lsn: formatLsn(gapLsn), health: degraded(reason) }
}
