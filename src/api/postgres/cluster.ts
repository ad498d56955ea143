import { Type } from 'typebox'
import {
  createCluster,
  deleteCluster,
  getCluster,
  listClustersOf,
  updateCluster,
} from '../../actions/postgres/cluster.ts'
import {
  type ClusterDetails,
  CreateCluster,
  clusterStatus,
  PostgresCluster,
  PostgresClusterSummary,
  privateNames,
  privatePort,
  type RestoreView,
  UpdateCluster,
} from '../../model/postgres/cluster.ts'
import type { LastDrill } from '../../model/postgres/drill.ts'
import { findPlan } from '../../model/postgres/plan.ts'
import { clearWindows } from '../../model/postgres/restore.ts'
import type { LastUpgrade } from '../../model/postgres/upgrade.ts'
import type { PlatformSettings } from '../../model/settings.ts'
import { parseTime, rfc3339FromJson, toRfc3339 } from '../../model/time.ts'
import { organizationView } from '../account/org.ts'
import { noOrganization } from '../error-text.ts'
import { textField } from '../http/access.ts'
import { type Route, route } from '../http/route.ts'

export const ById = Type.Object({ postgres_cluster_id: Type.String({ description: 'The id of the cluster.' }) })

export const noCluster = 'The cluster does not exist, is deleted, or belongs to an organization this token may not see.'

/** Successful responses of Postgres operations wrap their content in `data`. */
export function Data<T extends Parameters<typeof Type.Object>[0][string]>(schema: T) {
  return Type.Object({ data: schema })
}

export const clusterRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/postgres',
    id: 'listClusters',
    tag: 'Postgres',
    summary: 'List the clusters of an organization',
    scope: 'read',
    targets: ({ query }) => [{ org: textField(query, 'org_slug'), feature: 'postgres' }],
    query: Type.Object({
      org_slug: Type.String({ description: 'The organization to list clusters for.' }),
      include_deleted: Type.Optional(Type.Boolean({ description: 'Include deleted clusters.' })),
    }),
    status: 200,
    response: Data(Type.Array(PostgresClusterSummary)),
    errors: {
      404: noOrganization,
      422: '`org_slug` is missing, or a parameter is not valid.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, query }) => {
      const clusters = await listClustersOf(ctx, query.org_slug, query.include_deleted ?? false)
      return { data: clusters.map(summaryView) }
    },
  }),
  route({
    method: 'POST',
    path: '/v1/postgres',
    id: 'createCluster',
    tag: 'Postgres',
    summary: 'Create a cluster',
    description: 'The cluster is provisioned in the background; poll it until its status is `ready`.',
    scope: 'write',
    targets: ({ body }) => [{ newClusterIn: textField(body, 'org_slug') }],
    body: CreateCluster,
    status: 201,
    response: Data(PostgresCluster),
    errors: {
      404: noOrganization,
      422: 'A field is missing or not valid, or the name is taken in the organization.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, body }) => ({ data: clusterView(ctx.settings, await createCluster(ctx, body)) }),
  }),
  route({
    method: 'GET',
    path: '/v1/postgres/{postgres_cluster_id}',
    id: 'getCluster',
    tag: 'Postgres',
    summary: 'Show a cluster',
    scope: 'read',
    params: ById,
    status: 200,
    response: Data(PostgresCluster),
    errors: { 404: noCluster },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      return { data: clusterView(ctx.settings, await getCluster(ctx, params.postgres_cluster_id)) }
    },
  }),
  route({
    method: 'PATCH',
    path: '/v1/postgres/{postgres_cluster_id}',
    id: 'updateCluster',
    tag: 'Postgres',
    summary: 'Change settings of a cluster',
    description:
      'Fields that are not given stay as they are. A shorter retention takes effect within an hour, when expired backups are removed the next time.',
    scope: 'write',
    params: ById,
    body: UpdateCluster,
    status: 200,
    response: Data(PostgresCluster),
    errors: { 404: noCluster, 422: 'A field is not valid, or the cluster is being deleted.' },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => {
      return { data: clusterView(ctx.settings, await updateCluster(ctx, params.postgres_cluster_id, body)) }
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/postgres/{postgres_cluster_id}',
    id: 'deleteCluster',
    tag: 'Postgres',
    summary: 'Delete a cluster',
    description: 'Works in every state. Its data on this machine is removed in the background.',
    scope: 'write',
    params: ById,
    status: 202,
    errors: { 404: noCluster, 410: 'The cluster is already deleted.' },
    wrongTypeStatus: 400,
    run: ({ ctx, params }) => deleteCluster(ctx, params.postgres_cluster_id),
  }),
]

export function clusterView(settings: EndpointSettings, cluster: ClusterDetails) {
  const plan = findPlan(cluster.plan)!
  const windows = windowViews(cluster.passes)
  return {
    id: cluster.id,
    name: cluster.name,
    organization: organizationView({ name: cluster.orgName, slug: cluster.orgSlug, numericId: cluster.orgNumericId }),
    status: clusterStatus(cluster.state),
    plan: plan.name,
    pg_major_version: cluster.pgMajor,
    pg_version: cluster.pgVersion,
    pg_newest_version: cluster.newestVersion,
    ...(cluster.upgrade === null ? {} : { upgrade: upgradeView(cluster.upgrade, cluster.failure) }),
    cpu_kind: plan.cpuKind,
    cpus: plan.cpus,
    memory_mb: plan.memoryMb,
    disk_size_gb: cluster.diskSizeGb,
    replicas: cluster.replicas,
    region: cluster.region,
    postgis_enabled: cluster.postgisEnabled,
    pool_mode: cluster.poolMode,
    retention_days: cluster.retentionDays ?? settings.pitrDays,
    maintenance_window: cluster.maintenanceWindow,
    created_at: rfc3339FromJson(cluster.createdAt),
    attached_apps: cluster.attachedApps.map((name) => ({ name })),
    ...(cluster.state === 'ready' ? { ...endpointsView(settings, cluster), health: healthView(cluster) } : {}),
    storage_provisioned_bytes: cluster.storageProvisionedBytes,
    storage_used_bytes: cluster.storageUsedBytes,
    recovery_window: windows.at(-1) ?? null,
    recovery_windows: windows,
    ...(cluster.restore === null ? {} : { restore: restoreView(cluster.restore, cluster.failure) }),
    ...(cluster.lastDrill === null ? {} : { last_drill: lastDrillView(cluster.lastDrill) }),
    ...(cluster.failure === null ? {} : { failure: cluster.failure }),
    ...(settings.clusterGap === undefined ? {} : { isolation: { kind: 'none', gap: settings.clusterGap } }),
  }
}

/** Times that the clock of the cluster went through twice are left out, because they cannot be restored. */
function windowViews(passes: ClusterDetails['passes']) {
  const time = (text: string | null) => (text === null ? null : parseTime(rfc3339FromJson(text))!)
  const windows = clearWindows(
    passes.map(([earliest, latest, from, until]) => ({
      earliest: time(earliest),
      latest: time(latest),
      from: time(from)!,
      until: time(until),
    })),
  )
  return windows.map(({ earliest, latest }) => ({ earliest: toRfc3339(earliest), latest: toRfc3339(latest) }))
}

function restoreView(restore: RestoreView, clusterFailure: string | null) {
  const failure = clusterFailure ?? restore.failure
  const time = (text: string | null) => (text === null ? null : rfc3339FromJson(text))
  return {
    source_cluster_id: restore.source_cluster_id,
    ...(restore.backup_id === null ? {} : { backup_id: restore.backup_id }),
    ...(restore.pitr_time === null ? {} : { pitr_time: time(restore.pitr_time) }),
    phase: failure === null ? restore.phase : 'failed',
    bytes_done: restore.bytes_done,
    bytes_total: restore.bytes_total,
    replayed_until: time(restore.replayed_until),
    verified: restore.verified_at !== null,
    error: failure,
    ...(restore.loss === null ? {} : { loss: restore.loss }),
  }
}

function upgradeView(upgrade: LastUpgrade, failure: string | null) {
  const time = (text: string | null) => (text === null ? null : rfc3339FromJson(text))
  const isOver = upgrade.phase === 'done' || upgrade.phase === 'failed'
  const hasFailed = failure !== null && upgrade.kind === 'major' && !isOver
  return {
    kind: upgrade.kind,
    phase: hasFailed ? 'failed' : upgrade.phase,
    from: upgrade.from,
    to: upgrade.to,
    planned_at: time(upgrade.planned_at),
    started_at: time(upgrade.started_at),
    finished_at: time(upgrade.finished_at),
    error: hasFailed ? failure : upgrade.error,
  }
}

function lastDrillView({ at, target, seconds, result, answer }: LastDrill) {
  return {
    at: rfc3339FromJson(at),
    target: target === null ? null : rfc3339FromJson(target),
    seconds,
    result,
    ...(answer === null ? {} : { answer }),
  }
}

type EndpointSettings = Pick<PlatformSettings, 'pgHost' | 'pitrDays' | 'privateNetworkGap' | 'clusterGap'>

function endpointsView({ pgHost: host, privateNetworkGap }: EndpointSettings, cluster: ClusterDetails) {
  const names = privateNames(cluster.id)
  const inside = (name: string) => ({ host: name, port: privatePort })
  return {
    endpoints: {
      primary: { direct: { host, port: cluster.directPort }, pooler: { host, port: cluster.poolerPort } },
    },
    ...(privateNetworkGap === undefined
      ? { private_endpoints: { direct: inside(names.direct), pooler: inside(names.pooler) } }
      : {}),
  }
}

function healthView(cluster: ClusterDetails) {
  return { status: cluster.health, reason: cluster.healthReason, since: rfc3339FromJson(cluster.healthSince) }
}

function summaryView(cluster: ClusterDetails) {
  return {
    id: cluster.id,
    name: cluster.name,
    status: clusterStatus(cluster.state),
    region: cluster.region,
    plan: cluster.plan,
    created_at: rfc3339FromJson(cluster.createdAt),
    ...(cluster.deletedAt === null ? {} : { deleted_at: rfc3339FromJson(cluster.deletedAt) }),
    attached_apps: cluster.attachedApps.map((name) => ({ name })),
  }
}
