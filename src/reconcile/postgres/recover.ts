// Rebuilds a cluster in place from its archive. Until its data directory is moved aside, nothing is lost: a recovery that
// turns out to be impossible before that returns to `ready`.
import type { RestoreFailure } from '../../drivers/postgres/restore/driver.ts'
import { UnusableArchiveError, WalFileError } from '../../drivers/repository/driver.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { holeInPieces, holeOfFile } from '../../model/postgres/damage.ts'
import { recoverHint } from '../../model/postgres/recover.ts'
import type { ArchiveBase, RestorePlan } from '../../model/postgres/restore.ts'
import { parseLsn } from '../../model/postgres/wal.ts'
import { findCurrentArchive } from '../../store/postgres/archive.ts'
import { recordDamage } from '../../store/postgres/damage.ts'
import { restartRecovery, setRecoveryPlan, setRecoveryRefused, setSwapped } from '../../store/postgres/recover.ts'
import type { Restore } from '../../store/postgres/restore.ts'
import { isRestorable } from '../../store/postgres/restore-plan.ts'
import { advance, type World, wait } from '../step.ts'
import { ensureArchive, startNextEpoch } from './archive.ts'
import { handleFailure } from './damage.ts'
import type { ResolvedPlan } from './log-end.ts'
import { findTakenPoolerPort, findTakenServerPort } from './port.ts'

type FindPlan = (restore: Restore, world: World) => Promise<ResolvedPlan>

/** Stops the cluster, chooses what to restore, and moves the data directory aside. Undefined once that is done. */
export async function prepareRecovery(cluster: Cluster, restore: Restore, world: World, findPlan: FindPlan) {
  const { hosting, postgres } = world
  // First, because a server whose data directory is gone may still listen on the port.
  if (!restore.swapped) await stop(cluster, world)
  const taken = (await findTakenServerPort(cluster, world)) ?? (await findTakenPoolerPort(cluster, world))
  if (taken !== undefined) return wait(1, `another program listens on port ${taken}, which clients know`)
  const kept = postgres.data.listAside(cluster.id).length
  // The copy and the damaged directories exist at the same time.
  await hosting.ensureDiskLimit(cluster.id, cluster.diskSizeGb * (2 + kept), true)
  if (restore.swapped) return undefined
  if (restore.plan) {
    if (restore.aside === null) postgres.data.discard(cluster.id)
    else postgres.data.moveAside(cluster.id, restore.aside)
    return wait(0, 'the data directory is moved aside', (tx) => setSwapped(tx, cluster.id))
  }
  return choosePlan(cluster, restore, world, findPlan)
}

/** A clean shutdown waits until all WAL is archived. */
async function stop({ id }: Cluster, { backups, pooler, postgres, receiver, restores }: World): Promise<void> {
  await restores.remove(id)
  await backups.removeScrub(id)
  await pooler.removePooler(id)
  await postgres.stop(id)
  await receiver.removeReceiver(id)
}

async function choosePlan(cluster: Cluster, restore: Restore, world: World, findPlan: FindPlan) {
  if (!(await isRestorable(world.db, cluster.id))) return refuse(cluster, 'there is no intact backup with its WAL')
  const found = await findPlan(restore, world)
  if (typeof found === 'string') return wait(0.2, found)
  if ('failure' in found) return refuse(cluster, found.failure)
  const plan = 'loss' in found ? found.plan : found
  const problem = await findPlanProblem(plan, world)
  if (problem === undefined) return wait(0, 'resolved', (tx) => setRecoveryPlan(tx, cluster.id, plan))
  // Another plan may avoid a damaged backup. Damaged WAL leaves the part before it.
  if (problem.is === 'backup' || (problem.is === 'wal' && restore.acceptLoss))
    return wait(0, `${problem.reason}; choosing another plan`)
  return refuse(cluster, problem.reason)
}

/** Records the first damage that is visible without a copy. */
async function findPlanProblem({ backup, pieces }: RestorePlan, { db, repository }: World) {
  const missing = await repository.findMissingBackup(backup.clusterId, backup.label)
  if (missing !== undefined) {
    await db.transaction((tx) => recordDamage(tx, { backup, reason: missing }))
    return { is: 'backup' as const, reason: `backup ${backup.label} is damaged: ${missing}` }
  }
  try {
    await repository.planWal(pieces, parseLsn(backup.startLsn))
    return undefined
  } catch (error) {
    if (error instanceof UnusableArchiveError) return { is: 'archive' as const, reason: error.message }
    const hole = error instanceof WalFileError ? holeOfFile(error.file, error.kind, error.message) : undefined
    if (!hole) throw error
    await db.transaction((tx) => recordDamage(tx, { wal: holeInPieces(pieces, hole) }))
    return { is: 'wal' as const, reason: hole.reason }
  }
}

/** The data directory is unchanged, so the cluster becomes what it was. */
function refuse({ id }: Cluster, reason: string) {
  const text = `it was not recovered: ${reason}; to lose what follows the damage, ${recoverHint(id)} --accept-loss`
  return advance('ready', text, (tx) => setRecoveryRefused(tx, id, text))
}

/** If the owner accepts the loss, the recovery starts over and ends before the damage. */
export async function handleRecoveryFailure(cluster: Cluster, restore: Restore, failure: RestoreFailure, world: World) {
  const result = await handleFailure(restore, failure, world)
  if ('wait' in result || failure.hole === undefined) return result
  if (!restore.acceptLoss) {
    return advance('failed', `${failure.reason}; to lose what follows, ${recoverHint(cluster.id)} --accept-loss`)
  }
  await stop(cluster, world)
  return wait(0, `${failure.reason}; recovering what precedes it`, (tx) => restartRecovery(tx, cluster.id))
}

/** The timeline is new, so a new epoch starts. Until its first backup it depends on the WAL before it. */
export async function ensureRecoveredArchive(
  cluster: Cluster,
  { newEpoch }: Restore,
  base: ArchiveBase,
  world: World,
): Promise<void> {
  const current = await findCurrentArchive(world.db, cluster.id)
  if (!current || current.epoch < newEpoch!) await startNextEpoch(cluster, world, base)
  await ensureArchive(cluster, world, base)
}
