import { Type } from 'typebox'
import { mayAccess, type Target } from '../../actions/account/access.ts'
import { getOrg } from '../../actions/account/org.ts'
import { getApp } from '../../actions/app/app.ts'
import { attach, detach } from '../../actions/app/attachment.ts'
import { getCaller } from '../../actions/context.ts'
import { createBackup, listBackupsOf } from '../../actions/postgres/backup.ts'
import { createCluster, deleteCluster, getCluster, listClustersOf } from '../../actions/postgres/cluster.ts'
import { getSource, restoreCluster } from '../../actions/postgres/restore.ts'
import { findCredentials } from '../../live/postgres/user.ts'
import { action } from '../../model/account/access.ts'
import { listRegions } from '../../model/account/region.ts'
import { notFound } from '../../model/errors.ts'
import type { Backup } from '../../model/postgres/backup.ts'
import {
  type ClusterDetails,
  defaultDatabase,
  defaultUser,
  privateNames,
  privatePort,
} from '../../model/postgres/cluster.ts'
import { RestoreRequest } from '../../model/postgres/restore.ts'
import { type Micros, toRfc3339 } from '../../model/time.ts'
import { noOrganization } from '../error-text.ts'
import { attachment, copiedCluster } from '../http/access.ts'
import type { Call, Route, UncheckedCall } from '../http/route.ts'
import { ById, families, InternalOrg, internalRoute, noCluster, notReady } from './route.ts'

const InOrg = Type.Object({ ...InternalOrg.properties, ...ById.properties })

const NewCluster = Type.Object({
  name: Type.Optional(Type.String()),
  region: Type.Optional(Type.String()),
  plan: Type.String(),
  pg_major_version: Type.Optional(Type.Enum(['16', '17', ''])),
  storage_in_gb: Type.Optional(
    Type.Integer({ minimum: 0, maximum: 500, description: 'Gigabytes; 0 is treated as omitted.' }),
  ),
  disk: Type.Optional(Type.Integer({ minimum: 0, maximum: 500, description: 'Alias of `storage_in_gb`.' })),
  postgis_enabled: Type.Optional(Type.Boolean()),
})

export const flyctlPostgresRoutes: Route[] = families.flatMap(({ family, suffix }) => {
  const base = `/api/v1/${family}/{postgres_cluster_id}`
  const inOrg = `/api/v1/organizations/{org_slug}/${family}`
  const id = (name: string) => `flyctl${name}${suffix}`
  return [
    internalRoute({
      method: 'GET',
      path: inOrg,
      id: id('ListClusters'),
      summary: 'List the clusters of an organization',
      scope: 'read',
      targets: clustersOfOrg,
      params: InternalOrg,
      status: 200,
      errors: { 404: noOrganization },
      run: async ({ ctx, params }) => ({ data: (await listClustersOf(ctx, params.org_slug, false)).map(listed(ctx)) }),
    }),
    internalRoute({
      method: 'GET',
      path: `${inOrg}/deleted`,
      id: id('ListDeletedClusters'),
      summary: 'List the deleted clusters of an organization',
      scope: 'read',
      targets: clustersOfOrg,
      params: InternalOrg,
      status: 200,
      errors: { 404: noOrganization },
      run: async ({ ctx, params }) => {
        const all = await listClustersOf(ctx, params.org_slug, true)
        return { data: all.filter((cluster) => cluster.deletedAt !== null).map(listed(ctx)) }
      },
    }),
    internalRoute({
      method: 'GET',
      path: `${inOrg}/regions`,
      id: id('ListClusterRegions'),
      summary: 'List the regions for clusters',
      scope: 'read',
      targets: clustersOfOrg,
      params: InternalOrg,
      status: 200,
      errors: { 404: noOrganization },
      run: async ({ ctx, params }) => {
        await getOrg(ctx, await getCaller(ctx), params.org_slug)
        return { data: listRegions(ctx.settings).map(({ code }) => ({ code, available: true })) }
      },
    }),
    internalRoute({
      method: 'POST',
      path: inOrg,
      id: id('CreateCluster'),
      summary: 'Create a cluster',
      scope: 'write',
      targets: ({ params }) => [{ newClusterIn: params.org_slug }],
      params: InternalOrg,
      body: NewCluster,
      status: 201,
      errors: { 404: noOrganization, 422: 'A field is not valid, or the name is taken.' },
      run: async ({ ctx, params, body }) => {
        const { name, region, plan, postgis_enabled } = body
        const diskSizeGb = body.storage_in_gb || body.disk
        const cluster = await createCluster(ctx, {
          org_slug: params.org_slug,
          plan,
          ...(name === undefined ? {} : { name }),
          ...(region === undefined ? {} : { region }),
          ...(body.pg_major_version ? { pg_major_version: body.pg_major_version } : {}),
          ...(diskSizeGb ? { disk_size_gb: diskSizeGb } : {}),
          ...(postgis_enabled === undefined ? {} : { postgis_enabled }),
        })
        return { ok: true, errors: { detail: '' }, data: { ...clusterView(ctx, cluster), environment: null } }
      },
    }),
    ...[
      { path: base, id: id('GetCluster'), params: ById },
      { path: `${inOrg}/{postgres_cluster_id}`, id: id('GetClusterOfOrganization'), params: InOrg },
    ].map(({ path, id, params }) =>
      internalRoute({
        method: 'GET',
        path,
        id,
        summary: 'Show a cluster and its credentials',
        scope: 'read',
        params,
        status: 200,
        errors: { 404: noCluster },
        run: async ({ ctx, params }) => {
          const cluster = await getOf(ctx, params)
          const generation = family === 'postgresv2' ? { mpgd_cluster_id: cluster.id } : {}
          return { data: { ...clusterView(ctx, cluster), ...generation }, credentials: await accessOf(ctx, cluster) }
        },
      }),
    ),
    internalRoute({
      method: 'DELETE',
      path: `${inOrg}/{postgres_cluster_id}`,
      id: id('DestroyCluster'),
      summary: 'Delete a cluster',
      scope: 'write',
      params: InOrg,
      status: 202,
      errors: { 404: noCluster },
      run: async ({ ctx, params }) => deleteCluster(ctx, (await getOf(ctx, params)).id),
    }),
    internalRoute({
      method: 'GET',
      path: `${base}/backups`,
      id: id('ListBackups'),
      summary: 'List the backups of a cluster, newest first',
      scope: 'read',
      params: ById,
      status: 200,
      errors: { 404: noCluster },
      run: async ({ ctx, params }) => ({
        data: (await listBackupsOf(ctx, params.postgres_cluster_id)).map(backupView),
      }),
    }),
    internalRoute({
      method: 'POST',
      path: `${base}/backups`,
      id: id('CreateBackup'),
      summary: 'Take a backup now',
      description: 'Every backup is a full one; `message` says so when another type was requested.',
      scope: 'write',
      action: 'create',
      params: ById,
      body: Type.Object({
        type: Type.Optional(Type.String({ description: '`full`; `incr` and `diff` also make a full one.' })),
      }),
      status: 201,
      errors: { 404: noCluster, 409: 'A backup is in progress.', 422: notReady },
      run: async ({ ctx, params, body }) => {
        await createBackup(ctx, params.postgres_cluster_id)
        const [newest] = await listBackupsOf(ctx, params.postgres_cluster_id)
        const isOther = body.type !== undefined && body.type !== '' && body.type !== 'full'
        return {
          data: newest && backupView(newest),
          ...(isOther && { message: `a full backup is being made, because there are no ${body.type} backups here` }),
        }
      },
    }),
    internalRoute({
      method: 'POST',
      path: `${base}/restore`,
      id: id('RestoreCluster'),
      summary: 'Restore a backup or a point in time into a new cluster',
      scope: 'write',
      targets: copiedCluster,
      params: ById,
      body: RestoreRequest,
      status: 201,
      errors: { 404: `${noCluster} Or: it has no such backup.`, 422: 'The restore target is missing or not possible.' },
      precheck: ({ ctx, params }) => getSource(ctx, params.postgres_cluster_id),
      run: async ({ ctx, params, body }) => ({
        data: clusterView(ctx, await restoreCluster(ctx, params.postgres_cluster_id, body)),
      }),
    }),
    internalRoute({
      method: 'POST',
      path: `${base}/attachments`,
      id: id('CreateAttachment'),
      summary: 'Attach an app to a cluster',
      scope: 'write',
      action: 'write',
      targets: attachment,
      params: ById,
      body: Type.Object({ app_name: Type.String({ description: 'An app of the same organization.' }) }),
      status: 201,
      errors: { 404: `${noCluster} Or: its organization has no such app.`, 422: 'A field is missing or not valid.' },
      run: async ({ ctx, params, body }) => {
        const { attachedAt } = await attach(ctx, params.postgres_cluster_id, body.app_name)
        const { numericId } = await getApp(ctx, body.app_name)
        return { data: { id: numericId, app_id: numericId, attached_at: toRfc3339(attachedAt) } }
      },
    }),
    internalRoute({
      method: 'DELETE',
      path: `${base}/attachments/{app_name}`,
      id: id('DeleteAttachment'),
      summary: 'Detach an app from a cluster',
      scope: 'write',
      action: 'write',
      params: Type.Object({ ...ById.properties, app_name: Type.String({ description: 'The attached app.' }) }),
      status: 200,
      errors: { 404: `${noCluster} Or: the app is not attached to it.` },
      run: async ({ ctx, params }) => {
        await detach(ctx, params.postgres_cluster_id, params.app_name)
        return { data: { message: `App ${params.app_name} is detached from cluster ${params.postgres_cluster_id}` } }
      },
    }),
  ]
})

type Asked = Call<unknown, unknown, unknown>['ctx']

/** All clusters of the organization in the path. */
function clustersOfOrg({ params }: UncheckedCall): Target[] {
  return [{ org: params.org_slug, feature: 'postgres' }]
}

/** Gets the cluster, which must belong to the organization in the path if there is one. */
async function getOf(ctx: Asked, params: { postgres_cluster_id: string; org_slug?: string }): Promise<ClusterDetails> {
  const cluster = await getCluster(ctx, params.postgres_cluster_id)
  if (params.org_slug !== undefined && params.org_slug !== cluster.orgSlug) throw notFound('Cluster not found')
  return cluster
}

function listed(ctx: Asked) {
  return (cluster: ClusterDetails) => ({ ...clusterView(ctx, cluster), mpgd_cluster_id: cluster.id, version: 2 })
}

function clusterView({ settings }: Asked, cluster: ClusterDetails) {
  return {
    id: cluster.id,
    name: cluster.name,
    status: statusOf(cluster),
    engine: 'postgres',
    plan: cluster.plan,
    region: cluster.region,
    pg_major_version: cluster.pgMajor,
    disk: cluster.diskSizeGb,
    replicas: cluster.replicas,
    organization: { name: cluster.orgName, slug: cluster.orgSlug, raw_slug: cluster.orgSlug },
    ip_assignments: { direct: cluster.state === 'ready' ? settings.pgHost : '' },
    attached_apps: cluster.attachedApps.map((name) => ({ name })),
    postgis_enabled: cluster.postgisEnabled,
  }
}

/** Maps states to the names that flyctl knows. */
function statusOf({ state }: ClusterDetails): string {
  if (state === 'failed') return 'error'
  return state === 'purged' ? 'deleted' : state
}

/**
 * Read-only tokens get no password, because it allows writing. The URI becomes a secret of an app, so it uses the private
 * network where there is one.
 */
export async function accessOf(ctx: Asked, cluster: ClusterDetails, user = defaultUser, database = defaultDatabase) {
  const status = cluster.state === 'ready' ? 'ready' : cluster.state === 'failed' ? 'error' : 'initializing'
  const about = { status, user, dbname: database }
  const mayReadPassword =
    status === 'ready' &&
    (await getCaller(ctx)).kind !== 'read' &&
    (await mayAccess(ctx, [{ cluster: cluster.id }], action.write))
  // The default user may have been deleted.
  const credentials = mayReadPassword ? await findCredentials(ctx, cluster.id, user) : undefined
  if (!credentials) return { ...about, password: '', pgbouncer_uri: '' }
  const { password } = credentials
  const { pgHost, privateNetworkGap } = ctx.settings
  const isPrivate = privateNetworkGap === undefined
  const address = isPrivate ? `${privateNames(cluster.id).pooler}:${privatePort}` : `${pgHost}:${cluster.poolerPort}`
  const uri = `postgresql://${encodeURIComponent(user)}:${password}@${address}/${encodeURIComponent(database)}`
  return { ...about, password, pgbouncer_uri: uri }
}

function backupView(backup: Backup) {
  const time = (value: Micros | null) => (value === null ? '' : toRfc3339(value))
  return {
    id: backup.label,
    status: backup.state,
    type: 'full',
    start: time(backup.startedAt),
    stop: time(backup.finishedAt),
  }
}
