import { conflict, invalid, notFound } from '../../model/errors.ts'
import type { ClusterDetails } from '../../model/postgres/cluster.ts'
import { importInProgress } from '../../model/postgres/import.ts'
import { needsOf } from '../../model/postgres/spec.ts'
import { isNewerVersion, type UpgradeRequest } from '../../model/postgres/upgrade.ts'
import { type Micros, nowMicros, parseTime } from '../../model/time.ts'
import { getClusterDetails } from '../../store/postgres/cluster.ts'
import { hasActiveImport } from '../../store/postgres/import.ts'
import { cancelUpgrade, planUpgrade } from '../../store/postgres/upgrade.ts'
import { lockState } from '../../store/transition.ts'
import { enqueue } from '../../store/work.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { getReadyCluster } from './cluster.ts'

/** Plans a restart with the newest installed minor version, now or later. */
export async function upgradeMinor(
  ctx: LiveContext,
  clusterId: string,
  input: UpgradeRequest,
): Promise<ClusterDetails> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  if (input.name?.trim()) throw invalid('name needs pg_major_version: a minor upgrade creates no cluster')
  const plannedAt = input.at?.trim() ? checkTime(input.at) : null
  const { version: newest } = await withDeadline(
    ctx.hosting.findToolchain(cluster.pgMajor, needsOf(cluster)),
    'the installation',
  )
  const running = cluster.toolchain!.version
  if (!isNewerVersion(newest, running)) {
    throw conflict(`PostgreSQL ${running}, which the cluster runs, is the newest installed version`)
  }
  await ctx.db.transaction(async (tx) => {
    await lockState(tx, 'cluster', cluster.id)
    if (plannedAt === null && (await hasActiveImport(tx, cluster.id))) throw importInProgress()
    const upgrade = { fromVersion: running, toVersion: newest, plannedAt }
    if (!(await planUpgrade(tx, cluster.id, upgrade))) throw conflict('an upgrade is in progress')
    await enqueue(tx, 'cluster', cluster.id)
  })
  return getClusterDetails(ctx.db, ctx.tokenHash, cluster.id, { extras: true })
}

export async function cancelPlannedUpgrade(ctx: LiveContext, clusterId: string): Promise<void> {
  const cluster = await getReadyCluster(ctx, clusterId, 'write')
  const phase = await ctx.db.transaction((tx) => cancelUpgrade(tx, cluster.id))
  if (phase === 'planned') return
  if (phase === 'restarting' || phase === 'reverting') throw conflict('the upgrade has begun and cannot be cancelled')
  throw notFound('No upgrade is planned')
}

function checkTime(text: string): Micros {
  const time = parseTime(text)
  if (time === undefined) throw invalid('at must be an RFC 3339 timestamp with a UTC offset')
  if (time <= nowMicros()) throw invalid('at must be in the future; without it the upgrade begins at once')
  return time
}
