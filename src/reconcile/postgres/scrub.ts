import { type Cluster, degraded, type Health } from '../../model/postgres/cluster.ts'
import { toolchainOf } from '../../model/postgres/spec.ts'
import { formatLsn, parseLsn, segmentName, segmentNumber } from '../../model/postgres/wal.ts'
import { findBackupFailure } from '../../store/postgres/backup.ts'
import { setHealth } from '../../store/postgres/cluster.ts'
import {
  claimScrub,
  findUnreplacedDamage,
  finishScrub,
  listNeededLog,
  readScrubs,
  type ScrubbedBackup,
} from '../../store/postgres/scrub.ts'
import { splitStretches } from '../../store/postgres/stretch.ts'
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
    if (gap) await splitStretches(tx, cluster.id, gap.epoch, gap.hole)
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
  hole: { from: string; to: string }
  health: Health
}

/** Finds the first missing WAL in what the recovery windows need. */
async function findGap(cluster: Cluster, { db, repository }: World): Promise<Gap | undefined> {
  for (const { epoch, timeline, fromLsn, toLsn } of await listNeededLog(db, cluster.id)) {
    const range = { from: parseLsn(fromLsn), to: parseLsn(toLsn) }
    const findHole = () => repository.findHole(cluster.id, epoch, timeline, range)
    // Checked twice, because the receiver may rename a segment during the listing.
    const hole = (await findHole()) && (await findHole())
    if (!hole) continue
    const name = segmentName(timeline, segmentNumber(hole.from))
    const health = degraded(`WAL segment ${name} is missing from the archive, and a backup follows`)
    return { epoch, hole: { from: formatLsn(hole.from), to: formatLsn(hole.to) }, health }
  }
  return undefined
}
