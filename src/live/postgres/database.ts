import type { DatabaseExtension } from '../../drivers/postgres/sql/driver.ts'
import { BerthError, badRequest, invalid, notFound } from '../../model/errors.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { findExtensionPackage, isPartOfPostgis } from '../../model/postgres/extension.ts'
import { type EnableExtension, platformDatabases, reservedDatabases } from '../../model/postgres/user.ts'
import type { LiveContext } from '../context.ts'
import { askCluster, getReadyCluster } from './cluster.ts'
import { endPooledSessions } from './pooler.ts'

export type { DatabaseExtension }

export async function listClusterDatabases(ctx: LiveContext, clusterId: string): Promise<string[]> {
  const cluster = await getReadyCluster(ctx, clusterId, 'read')
  return askCluster(ctx, cluster, ctx.postgres.databases.list(cluster.id))
}

export async function createClusterDatabase(ctx: LiveContext, clusterId: string, name: string): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  if (reservedDatabases.has(name)) throw reserved(name)
  await askCluster(ctx, cluster, conflictAsInvalid(ctx.postgres.databases.create(cluster.id, name)))
}

/** Ends all sessions in the database and deletes its contents. */
export async function dropClusterDatabase(ctx: LiveContext, clusterId: string, name: string): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  checkNotPlatform(name)
  await askCluster(ctx, cluster, conflictAsInvalid(ctx.postgres.databases.drop(cluster.id, name)))
  await endPooledSessions(ctx, cluster, { database: name })
}

export async function listClusterExtensions(
  ctx: LiveContext,
  clusterId: string,
  database: string,
): Promise<DatabaseExtension[]> {
  const cluster = await getReadyCluster(ctx, clusterId, 'read')
  checkNotPlatform(database)
  const extensions = await askCluster(ctx, cluster, ctx.postgres.extensions.list(cluster.id, database))
  return extensions.filter((extension) => isOffered(cluster, extension.name))
}

export async function enableClusterExtension(
  ctx: LiveContext,
  clusterId: string,
  database: string,
  input: EnableExtension,
): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  checkNotPlatform(database)
  if (!isOffered(cluster, input.name)) {
    throw invalid(`extension ${input.name} needs a cluster created with postgis_enabled`)
  }
  const options = { schema: input.schema || undefined, createSchema: input.create_schema ?? false }
  try {
    await askCluster(ctx, cluster, ctx.postgres.extensions.enable(cluster.id, database, input.name, options))
  } catch (err) {
    throw (await findMissingPackage(ctx, cluster, database, input.name, err)) ?? err
  }
}

/** An error that tells which package has the extension; undefined if the request failed for another reason. */
async function findMissingPackage(
  ctx: LiveContext,
  cluster: Cluster,
  database: string,
  name: string,
  err: unknown,
): Promise<BerthError | undefined> {
  const wanted = findExtensionPackage(name, cluster.pgMajor)
  if (wanted === undefined || !(err instanceof BerthError && err.code === 'not_found')) return undefined
  const available = await askCluster(ctx, cluster, ctx.postgres.extensions.list(cluster.id, database))
  if (available.some((extension) => extension.name === name)) return undefined
  const again = `create a cluster with it ("extensions": ["${name}"]), which then uses the PostgreSQL of the distribution`
  if (ctx.settings.installedExtensions[cluster.pgMajor].has(name)) {
    return invalid(`extension ${name} is not part of the PostgreSQL installation of this cluster; ${again}`)
  }
  const hint = cluster.toolchain?.source === 'npm' ? `; then ${again}` : ''
  return invalid(
    `extension ${name} is not installed on this platform; its operator can install the package ${wanted}${hint}`,
  )
}

export async function disableClusterExtension(
  ctx: LiveContext,
  clusterId: string,
  database: string,
  name: string,
  force: boolean,
): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  checkNotPlatform(database)
  const installed = (await listClusterExtensions(ctx, clusterId, database)).find((extension) => extension.name === name)
  if (!installed?.installed) throw notFound(`Extension ${name} is not enabled in ${database}`)
  const work = ctx.postgres.extensions.disable(cluster.id, database, name, { cascade: force })
  await askCluster(ctx, cluster, conflictAsInvalid(work, 'force=true removes them too'))
}

function isOffered(cluster: Cluster, extension: string): boolean {
  return cluster.postgisEnabled || !isPartOfPostgis(extension)
}

function checkNotPlatform(name: string): void {
  if (platformDatabases.has(name)) throw reserved(name)
}

function reserved(name: string): BerthError {
  return badRequest(`database ${name} is reserved`)
}

/** These operations do not document status 409, so a conflict becomes a 422. */
async function conflictAsInvalid<T>(work: Promise<T>, hint = ''): Promise<T> {
  try {
    return await work
  } catch (err) {
    if (err instanceof BerthError && err.code === 'conflict')
      throw invalid(hint ? `${err.message}; ${hint}` : err.message)
    throw err
  }
}
