import { type Cluster, degraded, type Health } from '../../model/postgres/cluster.ts'
import { type ArchiveHole, holeOfFile } from '../../model/postgres/damage.ts'
import { toolchainOf } from '../../model/postgres/spec.ts'
import {
  formatLsn,
  parseLsn,
  parseSegmentName,
  segmentName,
  segmentNumber,
  segmentStart,
} from '../../model/postgres/wal.ts'
import { findBackupFailure } from '../../store/postgres/backup.ts'
import { findUnreplacedDamage, recordDamage } from '../../store/postgres/damage.ts'
import {
  claimScrub,
  findLogToScrub,
  finishScrub,
  isNextToScrub,
  listNeededLog,
  type NeededLog,
  readScrubs,
  type ScrubbedBackup,
  setScrubPosition,
  startLogScrub,
} from '../../store/postgres/scrub.ts'
import { type World, wait } from '../step.ts'

/**
 * Starts or follows the periodic verification of a kept backup and of the WAL up to the next one. Undefined while there is no
 * result.
 */
export async function keepScrubbed(cluster: Cluster, world: World) {
  const { db, backups, keep } = world
  const { running, due, isFree } = await readScrubs(db, cluster.id, keep.scrubIntervalSeconds)
  if (running) return running.lsn === null ? inspectScrub(cluster, running, world) : scrubLog(cluster, running, world)
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
  // The job is removed before its result is stored: if storing fails, the backup is verified again.
  await world.backups.removeScrub(cluster.id)
  if (damage !== undefined) return finish(cluster, backup, damage, world)
  return wait(0, `the files of backup ${backup.label} are verified`, (tx) => startLogScrub(tx, backup.id))
}

async function finish(cluster: Cluster, backup: ScrubbedBackup, damage: string | undefined, world: World) {
  const hole = await findHole(cluster, world)
  const note = damage ?? hole?.reason ?? `backup ${backup.label} is verified`
  return wait(0, note, async (tx) => {
    await finishScrub(tx, backup.id, damage === undefined)
    if (damage !== undefined) {
      await recordDamage(tx, { backup: { clusterId: cluster.id, label: backup.label }, reason: damage })
    }
    if (hole) await recordDamage(tx, { wal: hole })
  })
}

/** A gigabyte, so that little is repeated if the job is killed. */
const filesAtATime = 64

/** Verifies the WAL after a backup, some files at a time. */
async function scrubLog(cluster: Cluster, backup: ScrubbedBackup, world: World) {
  const { backups, db, repository } = world
  const log = await findLogToScrub(db, backup.id)
  const seen = log && (await backups.inspectLogScrub(cluster.id))
  if (!log || !seen) return finish(cluster, backup, undefined, world)
  if (seen.is === 'running') return undefined
  if (seen.is === 'passed') return continueLogScrub(cluster, backup, log, seen.file, world)
  if (seen.is === 'failed') {
    // Throws if the whole repository is missing, which is not damage of the WAL.
    await repository.findMissingBackup(cluster.id, backup.label)
    const found = holeOfFile(seen.file, seen.kind, `WAL file ${seen.file} of ${cluster.id} ${seen.reason}`)
    const hole = found && { ...found, clusterId: cluster.id, epoch: log.epoch }
    return continueLogScrub(cluster, backup, log, seen.file, world, hole)
  }
  const range = { from: parseLsn(log.fromLsn), to: parseLsn(log.toLsn) }
  const sealed = await repository.listSealed(cluster.id, log.epoch, log.timeline, range, filesAtATime)
  if (sealed.files.length === 0) return finish(cluster, backup, undefined, world)
  await backups.removeScrub(cluster.id)
  await backups.startLogScrub(cluster.id, sealed)
  return undefined
}

/** Everything up to this file has been verified. Without a history nothing else can be used. */
async function continueLogScrub(
  cluster: Cluster,
  backup: ScrubbedBackup,
  log: NeededLog,
  file: string,
  { backups }: World,
  hole?: ArchiveHole,
) {
  await backups.removeScrub(cluster.id)
  const segment = parseSegmentName(file)
  const next = segment ? formatLsn(segmentStart(segment.number + 1n)) : log.toLsn
  return wait(0, hole?.reason ?? `the WAL of backup ${backup.label} is verified up to ${next}`, async (tx) => {
    await setScrubPosition(tx, backup.id, next)
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
