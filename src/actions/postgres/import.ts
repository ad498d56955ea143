import { requireClusterWriter } from '../../model/account/caller.ts'
import { conflict, invalid, notFound } from '../../model/errors.ts'
import { defaultDatabase, requireReady } from '../../model/postgres/cluster.ts'
import { type CreateImport, formatSource, importStates, parseImportUrl } from '../../model/postgres/import.ts'
import { reservedDatabases } from '../../model/postgres/user.ts'
import { seal } from '../../model/seal.ts'
import { getVisibleCluster } from '../../store/postgres/cluster.ts'
import { findLastImport, insertImport, type ListedImport } from '../../store/postgres/import.ts'
import { isUpgrading } from '../../store/postgres/upgrade.ts'
import { lockState, transition } from '../../store/transition.ts'
import type { Context } from '../context.ts'

const defaultJobs = 4

/** Whether the source can be reached and copied is found out in the background. */
export async function createImport(ctx: Context, clusterId: string, input: CreateImport): Promise<ListedImport> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  requireClusterWriter(caller)
  const { source, database } = checkInput(input)
  requireReady(cluster, 'a database can be imported')
  await ctx.db.transaction(async (tx) => {
    await lockState(tx, 'cluster', cluster.id)
    if (await isUpgrading(tx, cluster.id)) throw conflict('an upgrade is in progress')
    const id = await insertImport(tx, {
      clusterId: cluster.id,
      source: seal(ctx.encryptionKey, Buffer.from(JSON.stringify(source))),
      sourceName: formatSource(source),
      database,
      jobs: input.jobs ?? defaultJobs,
      live: input.live ?? false,
    })
    if (id === undefined) throw conflict('an import is already in progress')
  })
  return getImport(ctx, cluster.id)
}

function checkInput(input: CreateImport) {
  const source = parseImportUrl(input.url)
  const database = input.database ?? defaultDatabase
  if (reservedDatabases.has(database)) throw invalid(`database ${database} is reserved`)
  return { source, database }
}

/** The last import, in any state. */
export async function findImport(ctx: Context, clusterId: string): Promise<ListedImport | undefined> {
  const { cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  return findLastImport(ctx.db, cluster.id)
}

async function getImport(ctx: Context, clusterId: string): Promise<ListedImport> {
  const found = await findImport(ctx, clusterId)
  if (!found) throw notFound('Nothing was imported into this cluster')
  return found
}

export async function cutOverImport(ctx: Context, clusterId: string): Promise<ListedImport> {
  return command(ctx, clusterId, 'cutover')
}

/** Idempotent while it is being canceled. */
export async function cancelImport(ctx: Context, clusterId: string): Promise<ListedImport> {
  return command(ctx, clusterId, 'cancel')
}

async function command(ctx: Context, clusterId: string, name: 'cutover' | 'cancel'): Promise<ListedImport> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  requireClusterWriter(caller)
  const found = await getImport(ctx, cluster.id)
  const isUnderWay = name === 'cancel' ? found.state === 'canceling' : found.state === 'cutover'
  if (!isUnderWay) await ctx.db.transaction((tx) => transition(tx, 'import', importStates, found.id, name))
  return getImport(ctx, cluster.id)
}
