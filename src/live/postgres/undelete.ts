import { WalFileError } from '../../drivers/repository/driver.ts'
import { requireClusterWriter } from '../../model/account/caller.ts'
import { conflict } from '../../model/errors.ts'
import { describeLogDamage, findLogDamage } from '../../model/postgres/log-damage.ts'
import { ownStart } from '../../model/postgres/restore.ts'
import { getVisibleCluster } from '../../store/postgres/cluster.ts'
import { findLoss } from '../../store/postgres/recover.ts'
import { findRestorableRun, planForPosition } from '../../store/postgres/restore-plan.ts'
import { type LiveContext, withDeadline } from '../context.ts'

/** Throws if the log of a deleted cluster is damaged before its recorded end. Any other refusal is left to the action. */
export async function checkLog(ctx: LiveContext, clusterId: string): Promise<void> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId, { deleted: true })
  requireClusterWriter(caller)
  const run = await findRestorableRun(ctx.db, cluster.id)
  if (cluster.state !== 'deleted' || !run) return
  const loss = await findLoss(ctx.db, cluster.id)
  if (loss) throw refuse(loss.reason)
  const plan = await planForPosition(ctx.db, cluster.id, run)
  const { epoch, timeline } = plan.pieces.at(-1)!
  const from = ownStart(plan)
  const reading = ctx.repository.archiveTail(cluster.id, epoch, timeline, from).catch((error: Error) => {
    if (error instanceof WalFileError) throw refuse(error.message)
    throw error
  })
  const tail = await withDeadline(reading, 'the repository')
  const damage = findLogDamage(tail, run, from)
  if (damage) throw refuse(describeLogDamage(damage))
}

function refuse(damage: string) {
  return conflict(
    `the write-ahead log of the cluster is damaged: ${damage}; to restore what is intact, undelete it with accept_loss (--accept-loss)`,
  )
}
