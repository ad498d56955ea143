import { appNamePattern } from '../model/app.ts'
import { requireClusterWriter } from '../model/caller.ts'
import { notFound } from '../model/errors.ts'
import { type Attachment, attachApp, detachApp } from '../store/attachment.ts'
import { getVisibleCluster } from '../store/cluster.ts'
import type { Context } from './context.ts'

export async function attach(ctx: Context, clusterId: string, appName: string): Promise<Attachment> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  requireClusterWriter(caller)
  const attachment = await ctx.db.transaction(async (tx) => {
    return appNamePattern.test(appName) ? attachApp(tx, cluster.id, cluster.orgId, appName) : undefined
  })
  if (!attachment) throw notFound('App not found')
  return attachment
}

export async function detach(ctx: Context, clusterId: string, appName: string): Promise<void> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  requireClusterWriter(caller)
  if (!appNamePattern.test(appName) || !(await detachApp(ctx.db, cluster.id, appName))) {
    throw notFound(`App ${appName} is not attached to cluster ${cluster.id}`)
  }
}
