import { type Cluster, degraded, type Health } from '../../model/postgres/cluster.ts'
import type { ArchiveHole } from '../../model/postgres/damage.ts'
import { toolchainOf } from '../../model/postgres/spec.ts'
import { formatLsn, parseLsn, segmentName, segmentNumber } from '../../model/postgres/wal.ts'
import { findBackupFailure } from '../../store/postgres/backup.ts'
import { findUnreplacedDamage, recordDamage } from '../../store/postgres/damage.ts'
import {
  claimScrub,
  finishScrub,
  isNextToScrub,
  listNeededLog,
  readScrubs,
  type ScrubbedBackup,
} from '../../store/postgres/scrub.ts'
import { type World, wait } from '../step.ts'

/** Starts or follows the periodic verification of a kept backup. Undefined while there is no result. */
export async function keepScrubbed(cluster: Cluster, world: World) {
  const { db, backups, keep } = world
  const { running, due, isFree } = await readScrubs(db, cluster.id, keep.scrubIntervalSeconds)
  if (running) return inspectScrub(cluster, running, world)
  if (!due || !isFree || !(await isNextToScrub(db, cluster.id, keep.scrubIntervalSeconds))) return undefined
  // A leftover job, such as for a backup that was removed meanwhile, would be taken for the result.
  await backups.removeScrub(cluster.id)
  return (await db.transaction((tx) => claimScrub(tx, due.id))) ? startScrub(cluster, due, world) : undefined
}

async function startScrub(cluster: Cluster, backup: ScrubbedBackup, world: World) {
  const missing = await world.repository.findMissingBackup(cluster.id, backup.label)
  if (missing !== undefined) return concludeScrub(cluster, backup, missing, world)
  await world.backups.startScrub(cluster.id, backup.label, toolchainOf(cluster))
  return undefined
}

async function inspectScrub(cluster: Cluster, backup: ScrubbedBackup, world: World) {
  const { backups } = world
  const seen = await backups.inspectScrub(cluster.id)
  if (seen.is === 'running') return undefined
  if (seen.is === 'absent' || seen.is === 'interrupted') {
    await backups.removeScrub(cluster.id)
    return startScrub(cluster, backup, world)
  }
  if (seen.is === 'passed') return concludeScrub(cluster, backup, undefined, world)
  // Throws if the whole repository is missing, which is not damage of the backup.
  const missing = await world.repository.findMissingBackup(cluster.id, backup.label)
  return concludeScrub(cluster, backup, missing ?? seen.reason, world)
}

async function concludeScrub(cluster: Cluster, backup: ScrubbedBackup, damage: string | undefined, world: World) {
  const { backups } = world
  const hole = await findHole(cluster, world)
  // The job is removed before its result is stored: if storing fails, the backup is verified again.
  await backups.removeScrub(cluster.id)
  const note = damage ?? hole?.reason ?? `backup ${backup.label} is verified`
  return wait(0, note, async (tx) => {
    await finishScrub(tx, backup.id, damage === undefined)
    if (damage !== undefined) {
      await recordDamage(tx, { backup: { clusterId: cluster.id, label: backup.label }, reason: damage })
    }
    if (hole) await recordDamage(tx, { wal: hole })
  })
}

/** Reports a damaged or failed backup until a newer one replaces it. */
export async function findBackupProblem(cluster: Cluster, { db, keep }: World): Promise<Health | undefined> {
  const damage = await findUnreplacedDamage(db, cluster.id)
  if (damage !== undefined) return degraded(damage)
  const last = await findBackupFailure(db, cluster.id, keep.backupIntervalSeconds)
  return last && degraded(`backup ${last.label} failed: ${last.failure}`)
}

/** Finds the first missing WAL in what the recovery windows need. */
async function findHole(cluster: Cluster, { db, repository }: World): Promise<ArchiveHole | undefined> {
  for (const { epoch, timeline, fromLsn, toLsn } of await listNeededLog(db, cluster.id)) {
    const range = { from: parseLsn(fromLsn), to: parseLsn(toLsn) }
    const look = () => repository.findHole(cluster.id, epoch, timeline, range)
    // Checked twice, because the receiver may rename a segment during the listing.
    const hole = (await look()) && (await look())
    if (!hole) continue
    const name = segmentName(timeline, segmentNumber(hole.from))
    const reason = `WAL segment ${name} of ${cluster.id} is missing from its archive`
    const [from, to] = [formatLsn(hole.from), formatLsn(hole.to)]
    return { clusterId: cluster.id, epoch, timeline, fromLsn: from, toLsn: to, kind: 'missing', reason }
  }
  return undefined
}
