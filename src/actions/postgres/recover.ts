import { conflict, invalid, notFound } from '../../model/errors.ts'
import { type ClusterDetails, clusterStates } from '../../model/postgres/cluster.ts'
import { asideName, type RecoverRequest } from '../../model/postgres/recover.ts'
import { nowMicros, toRfc3339 } from '../../model/time.ts'
import type { Tx } from '../../store/db.ts'
import { acceptLoss, findLoss, hasBeenReady, startRecovery } from '../../store/postgres/recover.ts'
import { findRestore, type Restore } from '../../store/postgres/restore.ts'
import { isRestorable } from '../../store/postgres/restore-plan.ts'
import { lockState, transition } from '../../store/transition.ts'
import type { Context } from '../context.ts'
import { getCluster } from './cluster.ts'
import { getSource } from './restore.ts'

/** Rebuilds a cluster in place from its archive. Idempotent while that is in progress. */
export async function recoverCluster(ctx: Context, clusterId: string, input: RecoverRequest): Promise<ClusterDetails> {
  const { id } = await getSource(ctx, clusterId)
  const isAccepted = input.accept_loss ?? false
  await ctx.db.transaction(async (tx) => {
    const state = await lockState(tx, 'cluster', id)
    const last = await findRestore(tx, id)
    if (state === 'initializing' && last?.purpose === 'recover') return isAccepted ? acceptLoss(tx, id) : undefined
    await requireRecoverable(tx, id, state, isAccepted)
    await startRecovery(tx, id, isAccepted, isUnfinished(last) ? null : asideName(nowMicros()))
    await transition(tx, 'cluster', clusterStates, id, 'recover', 'recovering from its archive')
  })
  return getCluster(ctx, id)
}

/** The data directory is then what that attempt left, and not the damaged one. */
function isUnfinished(last: Restore | undefined): boolean {
  return last?.purpose === 'recover' && last.swapped && last.phase !== 'done'
}

async function requireRecoverable(tx: Tx, id: string, state: string | undefined, isAccepted: boolean): Promise<void> {
  if (state === 'creating' || state === 'initializing')
    throw invalid(`Cluster is ${state}; it can be recovered once it is ready`)
  if (state !== 'ready' && state !== 'failed') throw notFound('Cluster not found')
  if (state === 'failed' && !(await hasBeenReady(tx, id)))
    throw invalid('Cluster failed before it was ready, so there is nothing to recover; delete it')
  if (!(await isRestorable(tx, id))) throw invalid('recovery is unavailable: there is no intact backup with its WAL')
  const loss = isAccepted ? undefined : await findLoss(tx, id)
  if (!loss) return
  const until = toRfc3339(loss.until)
  throw conflict(
    `the archive cannot be restored up to its end: ${loss.reason}; with accept_loss the cluster is recovered up to ${until}, and later commits are lost`,
  )
}
