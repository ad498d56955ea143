import { requireCaller } from '../../model/account/caller.ts'
import { findCaller } from '../../store/account/token.ts'
import { getVisibleCluster } from '../../store/postgres/cluster.ts'
import { type LiveContext, withDeadline } from '../context.ts'

/** Of a cluster in any state: the log matters most for one that does not start. */
export async function readLogOf(ctx: LiveContext, clusterId: string, lines: number): Promise<string[]> {
  const { cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  return ctx.readClusterLog(cluster.id, lines)
}

export async function getAuthority(ctx: LiveContext): Promise<string> {
  requireCaller(await findCaller(ctx.db, ctx.tokenHash))
  return withDeadline(ctx.readAuthority(), 'the certificate authority')
}
