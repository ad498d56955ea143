import { requireClusterWriter } from '../../model/account/caller.ts'
import { conflict } from '../../model/errors.ts'
import { describeLogDamage, findLogDamage } from '../../model/postgres/log-damage.ts'
import { ownStart } from '../../model/postgres/restore.ts'
import { listWindows } from '../../store/postgres/archive.ts'
import { getVisibleCluster } from '../../store/postgres/cluster.ts'
import { findPlanFor } from '../../store/postgres/restore.ts'
import { type LiveContext, withDeadline } from '../context.ts'

/** Throws if the log of a deleted cluster is damaged before its recorded end. Any other refusal is left to the action. */
export async function checkLog(ctx: LiveContext, clusterId: string): Promise<void> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId, { deleted: true })
  requireClusterWriter(caller)
  const window = (await listWindows(ctx.db, cluster.id)).at(-1)
  if (cluster.state !== 'deleted' || !window) return
  const plan = await findPlanFor(ctx.db, cluster.id, window)
  const { epoch, timeline } = plan.pieces.at(-1)!
  const from = ownStart(plan)
  const tail = await withDeadline(ctx.repository.archiveTail(cluster.id, epoch, timeline, from), 'the repository')
  const damage = findLogDamage(tail, window, from)
  if (!damage) return
  throw conflict(
    `the write-ahead log of the cluster is damaged: ${describeLogDamage(damage)}; to restore what is intact, undelete it with accept_loss (--accept-loss)`,
  )
}
