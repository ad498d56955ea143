import { requireClusterWriter } from '../../model/account/caller.ts'
import { chooseRegion } from '../../model/account/region.ts'
import { BerthError, invalid } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import {
  type Cluster,
  type ClusterDetails,
  type CreateCluster,
  checkRetention,
  clusterNamePattern,
  clusterStates,
  defaultUser,
  generateClusterName,
  type UpdateCluster,
} from '../../model/postgres/cluster.ts'
import { presentQuery } from '../../model/postgres/drill.ts'
import { findExtensionPackage, isPartOfPostgis, isRefusedExtension } from '../../model/postgres/extension.ts'
import { checkMaintenanceWindow } from '../../model/postgres/maintenance.ts'
import { findPlan, plans } from '../../model/postgres/plan.ts'
import { newPassword } from '../../model/postgres/user.ts'
import { seal } from '../../model/seal.ts'
import type { PlatformSettings } from '../../model/settings.ts'
import type { Tx } from '../../store/db.ts'
import {
  getClusterDetails,
  getVisibleCluster,
  insertCluster,
  listClusters,
  type NewCluster,
} from '../../store/postgres/cluster.ts'
import { setRetention } from '../../store/postgres/retention.ts'
import { setMaintenanceWindow } from '../../store/postgres/upgrade.ts'
import { insertUser } from '../../store/postgres/user.ts'
import { lockState, transition } from '../../store/transition.ts'
import { enqueue } from '../../store/work.ts'
import { getOrg } from '../account/org.ts'
import { type Context, checked, getCaller } from '../context.ts'

export async function createCluster(ctx: Context, input: CreateCluster): Promise<ClusterDetails> {
  const settings = await checked(ctx, () => checkInput(ctx.settings, input))
  const caller = await getCaller(ctx)
  requireClusterWriter(caller)
  const org = await getOrg(ctx, caller, input.org_slug)
  const id = newId()
  await ctx.db.transaction((tx) => insertNewCluster(ctx, tx, { ...settings, id, orgId: org.id }))
  return getCluster(ctx, id)
}

/** Inserts the cluster and its first user and enqueues work, in the caller's transaction. */
async function insertNewCluster(ctx: Context, tx: Tx, cluster: NewCluster): Promise<void> {
  if (!(await insertCluster(tx, cluster))) throw invalid(`name ${cluster.name} has already been taken`)
  const password = seal(ctx.encryptionKey, Buffer.from(newPassword()))
  await insertUser(tx, cluster.id, { username: defaultUser, role: 'schema_admin', password })
  await enqueue(tx, 'cluster', cluster.id)
}

export async function getCluster(ctx: Context, id: string): Promise<ClusterDetails> {
  return getClusterDetails(ctx.db, ctx.tokenHash, id)
}

export async function listClustersOf(
  ctx: Context,
  orgSlug: string,
  includeDeleted: boolean,
): Promise<ClusterDetails[]> {
  if (orgSlug === '') await checked(ctx, () => required('org_slug'))
  const org = await getOrg(ctx, await getCaller(ctx), orgSlug)
  return listClusters(ctx.db, org.id, includeDeleted)
}

/** Changes the given settings and leaves the others. */
export async function updateCluster(ctx: Context, id: string, input: UpdateCluster): Promise<ClusterDetails> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, id)
  requireClusterWriter(caller)
  await ctx.db.transaction(async (tx) => {
    const state = await lockState(tx, 'cluster', cluster.id)
    if (state === 'deleting' || state === 'deleted' || state === 'purged') throw invalid('Cluster is being deleted')
    const { retention_days: days, maintenance_window: window } = input
    if (days !== undefined) await setRetention(tx, cluster.id, checkRetention(days, ctx.settings.pitrDays))
    if (window !== undefined) await setMaintenanceWindow(tx, cluster.id, checkMaintenanceWindow(window))
  })
  return getCluster(ctx, id)
}

/** Idempotent while the cluster is being deleted; afterwards the response is 410. */
export async function deleteCluster(ctx: Context, id: string): Promise<void> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, id, { deleted: true })
  requireClusterWriter(caller)
  await ctx.db.transaction(async (tx) => {
    const state = await lockState(tx, 'cluster', cluster.id)
    if (state === 'deleted' || state === 'purged') throw new BerthError('gone', 'Cluster is already deleted')
    if (state !== 'deleting') await transition(tx, 'cluster', clusterStates, cluster.id, 'delete')
  })
}

function checkInput(settings: PlatformSettings, input: CreateCluster): Omit<NewCluster, 'id' | 'orgId'> {
  if (input.org_slug === '') required('org_slug')
  const plan = findPlan(input.plan)
  if (!plan) throw invalid(`plan must be one of ${plans.map((known) => known.name).join(', ')}`)
  const region = chooseRegion(settings, input.region)
  if (region instanceof BerthError) throw region
  const pgMajor = input.pg_major_version ?? '16'
  if (input.postgis_enabled && !settings.installedExtensions[pgMajor].has('postgis')) {
    const wanted = findExtensionPackage('postgis', pgMajor)
    throw invalid(
      `postgis_enabled: the PostgreSQL ${pgMajor} installation of this platform has no PostGIS; its operator can install the package ${wanted}`,
    )
  }
  return {
    name: checkClusterName(input.name) ?? generateClusterName(),
    plan: plan.name,
    pgMajor,
    diskSizeGb: input.disk_size_gb ?? 10,
    region,
    postgisEnabled: input.postgis_enabled ?? false,
    extensions: checkExtensions(settings, pgMajor, input),
    poolMode: input.pool_mode ?? 'session',
    synchronousArchive: input.synchronous_archive ?? false,
    drillQuery: presentQuery(input.drill_query),
    retentionDays: checkRetention(input.retention_days, settings.pitrDays),
  }
}

function checkExtensions({ installedExtensions }: PlatformSettings, pgMajor: Cluster['pgMajor'], input: CreateCluster) {
  const names = [...new Set(input.extensions)]
  for (const name of names) {
    if (isPartOfPostgis(name) && !input.postgis_enabled) throw invalid(`extensions: ${name} needs postgis_enabled`)
    if (installedExtensions[pgMajor].has(name) && !isRefusedExtension(name)) continue
    const wanted = findExtensionPackage(name, pgMajor)
    const remedy = wanted === undefined ? '' : `; its operator can install the package ${wanted}`
    throw invalid(`extensions: PostgreSQL ${pgMajor} of this platform has no ${name}${remedy}`)
  }
  return names
}

/** Undefined when the name is omitted or blank. */
export function checkClusterName(name: string | undefined | null): string | undefined {
  if (name === undefined || name === null || name.trim() === '') return undefined
  if (clusterNamePattern.test(name)) return name
  throw invalid('name must be 1 to 63 lowercase letters, digits and dashes, not starting or ending with a dash')
}

function required(field: string): never {
  throw invalid(`${field} is required`)
}
