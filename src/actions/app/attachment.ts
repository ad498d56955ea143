import { requireClusterWriter } from '../../model/account/caller.ts'
import { appNamePattern } from '../../model/app/app.ts'
import { checkSecret } from '../../model/app/secret.ts'
import { notFound } from '../../model/errors.ts'
import { type Attachment, attachApp, detachApp, noteAttachmentSecret } from '../../store/app/attachment.ts'
import { getVisibleCluster, lockKeptCluster } from '../../store/postgres/cluster.ts'
import { type Context, checked } from '../context.ts'
import { type NewSecret, setSecretWith } from './secret.ts'

/** Also sets a secret, which detaching removes unless it was changed. */
export async function attach(
  ctx: Context,
  clusterId: string,
  appName: string,
  secret?: NewSecret,
): Promise<Attachment> {
  await checked(ctx, () => secret && checkSecret(secret.name, secret.value))
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  requireClusterWriter(caller)
  const attachment = await ctx.db.transaction(async (tx) => {
    await lockKeptCluster(tx, cluster.id)
    const made = appNamePattern.test(appName) ? await attachApp(tx, cluster.id, cluster.orgId, appName) : undefined
    if (made && secret) {
      const digest = await setSecretWith(ctx, tx, made.appId, secret)
      await noteAttachmentSecret(tx, cluster.id, made.appId, { name: secret.name, digest })
    }
    return made
  })
  if (!attachment) throw notFound('App not found')
  return attachment
}

export async function detach(ctx: Context, clusterId: string, appName: string): Promise<void> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  requireClusterWriter(caller)
  const isDetached =
    appNamePattern.test(appName) && (await ctx.db.transaction((tx) => detachApp(tx, cluster.id, appName)))
  if (!isDetached) throw notFound(`App ${appName} is not attached to cluster ${cluster.id}`)
}
