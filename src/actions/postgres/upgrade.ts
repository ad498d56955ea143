import { invalid } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import { type Cluster, type ClusterDetails, postgresMajors, requireReady } from '../../model/postgres/cluster.ts'
import { importInProgress } from '../../model/postgres/import.ts'
import { needsOf } from '../../model/postgres/spec.ts'
import type { UpgradeRequest } from '../../model/postgres/upgrade.ts'
import { nowMicros } from '../../model/time.ts'
import { joinTransaction } from '../../store/db.ts'
import { getClusterDetails } from '../../store/postgres/cluster.ts'
import { hasActiveImport } from '../../store/postgres/import.ts'
import type { NewRestore } from '../../store/postgres/restore.ts'
import { insertMajorUpgrade } from '../../store/postgres/upgrade.ts'
import { lockState } from '../../store/transition.ts'
import type { Context } from '../context.ts'
import { getSource, insertRestoredCluster, planNewest } from './restore.ts'

/** Creates a cluster of a newer major version with the data of this one, which is not changed. */
export async function upgradeMajor(ctx: Context, clusterId: string, input: UpgradeRequest): Promise<ClusterDetails> {
  const source = await getSource(ctx, clusterId)
  requireReady(source, 'it can be upgraded')
  const major = checkMajor(ctx, source, input)
  return ctx.db.transaction(async (tx) => {
    await lockState(tx, 'cluster', source.id)
    if (await hasActiveImport(tx, source.id)) throw importInProgress()
    const plan = await planNewest(tx, source.id, 'a major upgrade')
    const id = newId()
    const restore: NewRestore = {
      clusterId: id,
      sourceClusterId: source.id,
      backupId: null,
      pitrTime: null,
      plan: null,
      purpose: 'fork',
    }
    const name = input.name?.trim() ? input.name : upgradedName(source.name, major)
    await insertRestoredCluster(ctx, tx, source, name, nowMicros(), restore, plan)
    await insertMajorUpgrade(tx, id, source.toolchain!.version, major)
    return getClusterDetails(joinTransaction(tx), ctx.tokenHash, id, { extras: true })
  })
}

function checkMajor({ settings }: Context, source: Cluster, input: UpgradeRequest): Cluster['pgMajor'] {
  if (input.at?.trim()) throw invalid('at cannot be combined with pg_major_version: a major upgrade begins at once')
  const newer = postgresMajors.filter((major) => Number(major) > Number(source.pgMajor))
  const major = newer.find((known) => known === input.pg_major_version)
  if (major === undefined) {
    const choice = newer.length === 0 ? 'is the newest major version' : `can be upgraded to ${newer.join(', ')}`
    throw invalid(`pg_major_version: PostgreSQL ${source.pgMajor}, which the cluster runs, ${choice}`)
  }
  const lacking = needsOf(source).extensions.filter((name) => !settings.installedExtensions[major].has(name))
  if (lacking.length > 0) {
    const names = lacking.map((name) => (name === 'postgis' ? 'PostGIS' : name)).join(' and no ')
    throw invalid(`pg_major_version: the PostgreSQL ${major} installation of this platform has no ${names}`)
  }
  return major
}

function upgradedName(source: string, major: string): string {
  return `${source.slice(0, 58).replace(/-+$/, '')}-pg${major}`
}
