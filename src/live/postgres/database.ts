import { createDatabase, dropDatabase, listDatabases } from '../../drivers/postgres/sql/database.ts'
import {
  type DatabaseExtension,
  disableExtension,
  enableExtension,
  listDatabaseExtensions,
} from '../../drivers/postgres/sql/extension.ts'
import { BerthError, badRequest, type ErrorCode, invalid, notFound } from '../../model/errors.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { type EnableExtension, reservedDatabases } from '../../model/postgres/user.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { getReadyCluster } from './cluster.ts'
import { endPooled, tellPooler } from './pooler.ts'

export type { DatabaseExtension }

export async function listClusterDatabases(ctx: LiveContext, clusterId: string): Promise<string[]> {
  const cluster = await getReadyCluster(ctx, clusterId, 'read')
  return withDeadline(listDatabases(ctx.postgres, cluster.id), 'the cluster')
}

export async function createClusterDatabase(ctx: LiveContext, clusterId: string, name: string): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  refuseReserved(name)
  await withDeadline(said('conflict', createDatabase(ctx.postgres, cluster.id, name)), 'the cluster')
  await tellPooler(ctx, cluster)
}

/** Sessions in it end, and what is in it goes with it. */
export async function dropClusterDatabase(ctx: LiveContext, clusterId: string, name: string): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  refuseReserved(name)
  await withDeadline(said('conflict', dropDatabase(ctx.postgres, cluster.id, name)), 'the cluster')
  await tellPooler(ctx, cluster)
  await endPooled(ctx, cluster, { database: name })
}

export async function listExtensionsOf(
  ctx: LiveContext,
  clusterId: string,
  database: string,
): Promise<DatabaseExtension[]> {
  const cluster = await getReadyCluster(ctx, clusterId, 'read')
  refuseReserved(database)
  const extensions = await withDeadline(listDatabaseExtensions(ctx.postgres, cluster.id, database), 'the cluster')
  return extensions.filter((extension) => isOffered(cluster, extension.name))
}

export async function enableExtensionIn(
  ctx: LiveContext,
  clusterId: string,
  database: string,
  input: EnableExtension,
): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  refuseReserved(database)
  if (!isOffered(cluster, input.name)) {
    throw invalid(`extension ${input.name} needs a cluster created with postgis_enabled`)
  }
  const options = { schema: input.schema || undefined, createSchema: input.create_schema ?? false }
  await withDeadline(enableExtension(ctx.postgres, cluster.id, database, input.name, options), 'the cluster')
}

export async function disableExtensionIn(
  ctx: LiveContext,
  clusterId: string,
  database: string,
  name: string,
  force: boolean,
): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  refuseReserved(database)
  const installed = (await listExtensionsOf(ctx, clusterId, database)).find((extension) => extension.name === name)
  if (!installed?.installed) throw notFound(`Extension ${name} is not enabled in ${database}`)
  const work = disableExtension(ctx.postgres, cluster.id, database, name, { cascade: force })
  await withDeadline(said('conflict', work, 'force=true removes them too'), 'the cluster')
}

function isOffered(cluster: Cluster, extension: string): boolean {
  return cluster.postgisEnabled || !/^(postgis|address_standardizer)/.test(extension)
}

function refuseReserved(name: string): void {
  if (reservedDatabases.has(name)) throw badRequest(`database ${name} is reserved`)
}

/** These operations know no 409: what is in the way is said with 422. */
async function said<T>(code: ErrorCode, work: Promise<T>, hint = ''): Promise<T> {
  try {
    return await work
  } catch (err) {
    if (err instanceof BerthError && err.code === code) throw invalid(hint ? `${err.message}; ${hint}` : err.message)
    throw err
  }
}
