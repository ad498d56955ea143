// What a restore does when it finds a backup or archived WAL damaged.
import type { RestoreFailure } from '../../drivers/postgres/restore/driver.ts'
import { UnusableArchiveError, WalFileError } from '../../drivers/repository/driver.ts'
import { holeInPieces, holeOfFile } from '../../model/postgres/damage.ts'
import type { WalPiece } from '../../model/postgres/wal.ts'
import { listBackups, queueBackup } from '../../store/postgres/backup.ts'
import { loadCluster } from '../../store/postgres/cluster.ts'
import { recordDamage } from '../../store/postgres/damage.ts'
import { insertPins, pinsOf, type Restore, setRestorePlan } from '../../store/postgres/restore.ts'
import { findOtherPlan } from '../../store/postgres/restore-plan.ts'
import { advance, type World, wait } from '../step.ts'

/** Records what the failure says about the backup or the WAL, and continues with an older backup if there is one. */
export async function handleFailure(restore: Restore, failure: RestoreFailure, world: World) {
  await recordFailure(restore, failure, world)
  if (failure.damage === undefined) return advance('failed', withHint(restore, failure))
  return skipDamagedBackup(restore, failure.reason, world)
}

function withHint({ purpose, acceptLoss }: Restore, { reason, hole }: RestoreFailure): string {
  if (hole === undefined || purpose !== 'undelete' || acceptLoss) return reason
  return `${reason}; to restore what is intact, undelete it with accept_loss (--accept-loss)`
}

/** Returns the error about this archive, which trying again would not change. The damage of a WAL file is recorded. */
export async function recordUnreadable<T>(
  archive: WalPiece,
  { db }: World,
  read: () => Promise<T>,
): Promise<T | WalFileError | UnusableArchiveError> {
  try {
    return await read()
  } catch (error) {
    if (error instanceof UnusableArchiveError) return error
    const hole = error instanceof WalFileError ? holeOfFile(error.file, error.kind, error.message) : undefined
    if (!hole) throw error
    await db.transaction((tx) => recordDamage(tx, { wal: holeInPieces([archive], hole) }))
    return error as WalFileError
  }
}

/** In a transaction of its own, because it locks the cluster that the backup belongs to. */
async function recordFailure(restore: Restore, { damage, hole }: RestoreFailure, { db }: World): Promise<void> {
  const { backup, pieces } = restore.plan!
  if (damage !== undefined) await db.transaction((tx) => recordDamage(tx, { backup, reason: damage }))
  if (hole === undefined) return
  await db.transaction((tx) => recordDamage(tx, { wal: holeInPieces(pieces, hole) }))
  // The damaged archive may be that of an ancestor.
  await db.transaction(async (tx) => {
    const source = await loadCluster(tx, restore.sourceClusterId)
    if (source?.state === 'ready') await queueBackup(tx, source.id)
  })
}

async function skipDamagedBackup(restore: Restore, reason: string, { db, restores }: World) {
  const { clusterId } = restore
  const plan = restore.plan!
  if (!(await findOtherPlan(db, restore, plan))) return advance('failed', await withOthers(restore, reason, db))
  // Otherwise the result of this copy would be taken for that of the next one.
  await restores.remove(clusterId)
  return wait(0, `${reason}; using an older one`, async (tx) => {
    const other = await findOtherPlan(tx, restore, plan)
    if (!other) return
    await setRestorePlan(tx, clusterId, other)
    await insertPins(tx, clusterId, pinsOf(other))
  })
}

const maxListed = 3

/** Who asked for this backup learns which others there are. */
async function withOthers({ backupId, sourceClusterId }: Restore, reason: string, db: World['db']): Promise<string> {
  if (backupId === null) return reason
  const others = (await listBackups(db, sourceClusterId)).filter(
    ({ label, state, damage }) => label !== backupId && state === 'completed' && damage === null,
  )
  if (others.length === 0) return `${reason}; there is no other backup yet`
  const labels = others.slice(0, maxListed).map(({ label }) => label)
  return `${reason}; other backups: ${labels.join(', ')}${others.length > maxListed ? ' and more' : ''}`
}
