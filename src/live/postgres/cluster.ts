import { requireCaller, requireClusterWriter } from '../../model/account/caller.ts'
import { BerthError } from '../../model/errors.ts'
import { type Cluster, requireReady } from '../../model/postgres/cluster.ts'
import { findCaller } from '../../store/account/token.ts'
import { getVisibleCluster } from '../../store/postgres/cluster.ts'
import { type LiveContext, withDeadline } from '../context.ts'

/** Works in every state, because the log matters most for a cluster that does not start. */
export async function readClusterLog(ctx: LiveContext, clusterId: string, lines: number): Promise<string[]> {
  const { cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  return ctx.readClusterLog(cluster.id, lines)
}

export async function getAuthority(ctx: LiveContext): Promise<string> {
  requireCaller(await findCaller(ctx.db, ctx.tokenHash))
  return withDeadline(ctx.readAuthority(), 'the certificate authority')
}

/** Loads a cluster that is ready; throws if it is not or the caller lacks the right. */
export async function getReadyCluster(ctx: LiveContext, id: string, access: 'read' | 'write'): Promise<Cluster> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, id)
  if (access === 'write') requireClusterWriter(caller)
  requireReady(cluster, 'this works')
  return cluster
}

/**
 * Waits for what the server of a cluster does. That fails when the cluster is deleted or recovered meanwhile, and then the
 * response is that of its new state.
 */
export async function askCluster<T>(ctx: LiveContext, cluster: Cluster, answer: Promise<T>): Promise<T> {
  try {
    return await withDeadline(answer, 'the cluster')
  } catch (error) {
    if (!isRefusal(error)) await getReadyCluster(ctx, cluster.id, 'read')
    throw error
  }
}

/** Whether the error tells what is wrong with the request. */
function isRefusal(error: unknown): boolean {
  return error instanceof BerthError && error.statusCode < 500
}
