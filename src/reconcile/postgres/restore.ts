import type { RestoreSpec } from '../../drivers/postgres/restore/driver.ts'
import { describeError } from '../../model/errors.ts'
import { waitUntil } from '../../model/poll.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import type { RestorePlan } from '../../model/postgres/restore.ts'
import { clusterSpec, dataSpec } from '../../model/postgres/spec.ts'
import { endOfRecords, formatLsn, parseLsn } from '../../model/postgres/wal.ts'
import type { Tx } from '../../store/db.ts'
import { type ArchiveBase, listWindows } from '../../store/postgres/archive.ts'
import { queueBackup } from '../../store/postgres/backup.ts'
import { loadCluster } from '../../store/postgres/cluster.ts'
import {
  findOtherPlan,
  findPlanFor,
  findUnverifiedPlan,
  insertPins,
  pinsOf,
  type Restore,
  setRestoreDone,
  setRestorePlan,
  setRestoreProgress,
  setRestoreVerified,
} from '../../store/postgres/restore.ts'
import { isScrubbed, recordDamage } from '../../store/postgres/scrub.ts'
import { advance, type World, wait } from '../step.ts'
import { ensureArchive } from './archive.ts'
import { startPooler, waitForEndpoints } from './endpoint.ts'
import { renewPasswords } from './password.ts'

/** Short, because the recovery of a small cluster takes a tenth of a second. */
const pauseSeconds = 0.05

/** Initializes a restored cluster: copies the backup, replays WAL, and sets up passwords and an archive of its own. */
export async function initializeRestored(cluster: Cluster, restore: Restore, world: World) {
  const plan = restore.plan ?? (await resolveEnd(restore, world))
  if (typeof plan === 'string') return wait(0.2, plan)
  if (!restore.plan) return wait(0, 'resolved', (tx) => setRestorePlan(tx, cluster.id, plan))
  const spec: RestoreSpec = { ...dataSpec(cluster), ...plan }
  return (
    (await copy(cluster, restore, spec, world)) ??
    (await replay(cluster, restore, spec, world)) ??
    finish(cluster, restore, spec, world)
  )
}

/** Determines the end of the WAL for a restore without a target: what the source has written up to now. */
async function resolveEnd(restore: Restore, world: World): Promise<RestorePlan | string> {
  const source = await loadCluster(world.db, restore.sourceClusterId)
  const window = (await listWindows(world.db, restore.sourceClusterId)).at(-1)
  if (!source || !window) throw new Error('the source has no recovery window any more')
  const plan = await findPlanFor(world.db, source.id, window)
  const own = plan.pieces.at(-1)!
  const end = await findEnd(source, own, window.latestLsn, world)
  if (end === undefined) return 'waiting for the archive of the source'
  const pieces = [...plan.pieces.slice(0, -1), { ...own, end }]
  return { ...plan, pieces, target: { kind: 'end' } }
}

async function findEnd(source: Cluster, own: RestorePlan['pieces'][number], latest: string, world: World) {
  if (source.state !== 'ready') {
    // The receiver may have written more WAL after the last sample.
    const tail = await world.repository.archiveTail(own.clusterId, own.epoch, own.timeline, parseLsn(latest))
    return tail === undefined || tail.end < parseLsn(latest) ? latest : formatLsn(tail.end)
  }
  const [now] = await world.postgres.query<{ lsn: string }>(
    source.id,
    'postgres',
    'select pg_current_wal_insert_lsn() as lsn',
  )
  const end = endOfRecords(parseLsn(now!.lsn))
  // A busy source keeps writing, but the position read above is archived soon.
  const isArchived = async () => {
    const slot = await world.receiver.inspectSlot(source.id, `berth_${own.epoch}`)
    return slot.is === 'ok' && (slot.restartLsn ?? 0n) >= end
  }
  return (await waitUntil(isArchived, archiveTimeoutSeconds)) ? formatLsn(end) : undefined
}

const archiveTimeoutSeconds = 3

/** Measuring the progress slows down the copy, so it is done only this often. */
const copyTimeoutSeconds = 2

async function copy(cluster: Cluster, restore: Restore, spec: RestoreSpec, world: World) {
  const { db, restores } = world
  // A drill verifies everything again.
  const trusted = restore.purpose !== 'drill' && (await isScrubbed(db, spec.backup))
  await restores.startCopy(cluster.id, { ...spec, trusted })
  const seen = await restores.inspectCopy(cluster.id, copyTimeoutSeconds)
  if (seen.is === 'done') return undefined
  if (seen.is === 'failed' && seen.damage !== undefined)
    return skipDamagedBackup(restore, seen.reason, seen.damage, world)
  if (seen.is === 'failed') return advance('failed', seen.reason)
  if (seen.is === 'absent') return wait(pauseSeconds, 'starting the copy')
  const { bytesDone, bytesTotal, bytesVerified } = seen
  await setRestoreProgress(db, cluster.id, { phase: 'copying', bytesDone, bytesTotal, bytesVerified })
  return wait(pauseSeconds, `copied ${bytesDone} of ${bytesTotal} bytes, verified ${bytesVerified}`)
}

/** Records the damage and continues with an older backup if there is one. */
async function skipDamagedBackup(restore: Restore, reason: string, damage: string, { db, restores }: World) {
  const { clusterId } = restore
  const plan = restore.plan!
  await db.transaction((tx) => recordDamage(tx, plan.backup, damage))
  if (!(await findOtherPlan(db, restore, plan))) return advance('failed', reason)
  // Otherwise the result of this copy would be taken for that of the next one.
  await restores.remove(clusterId)
  return wait(0, `${reason}; using an older one`, async (tx) => {
    const other = await findOtherPlan(tx, restore, plan)
    if (!other) return
    await setRestorePlan(tx, clusterId, other)
    await insertPins(tx, clusterId, pinsOf(other))
  })
}

async function replay(cluster: Cluster, restore: Restore, spec: RestoreSpec, world: World) {
  const { db, hosting, postgres, restores } = world
  await postgres.ensureRunning(cluster.id, { ...clusterSpec(cluster, hosting), closed: true })
  const seen = await restores.inspectRecovery(cluster.id, spec)
  if (seen.is === 'promoted') return undefined
  if (seen.is === 'failed') return failAndBackUp(restore, seen.reason)
  if (seen.is === 'ended-early') {
    await restores.continueToEnd(cluster.id, spec)
    return wait(pauseSeconds, 'replaying to the end of the log')
  }
  const { replayedUntil, replayedLsn } = seen
  await setRestoreProgress(db, cluster.id, { phase: 'replaying', replayedUntil, replayedLsn })
  return wait(pauseSeconds, replayedUntil ? `replayed until ${replayedUntil}` : 'replaying')
}

/** Starts a new backup of the source, which does not depend on the damaged WAL. */
function failAndBackUp({ sourceClusterId }: Restore, reason: string) {
  return advance('failed', reason, async (tx) => {
    const source = await loadCluster(tx, sourceClusterId)
    if (source?.state === 'ready') await queueBackup(tx, source.id)
  })
}

async function finish(cluster: Cluster, restore: Restore, spec: RestoreSpec, world: World) {
  const { db, hosting, postgres, restores } = world
  await setRestoreProgress(db, cluster.id, { phase: 'finishing' })
  const seen = await restores.inspectRecovery(cluster.id, spec)
  if (seen.is === 'failed') return failAndBackUp(restore, seen.reason)
  if (seen.is !== 'promoted') return wait(pauseSeconds, 'finishing')
  const isVerified = (await restores.inspectVerification(cluster.id)).is === 'passed'
  const bytes = await restores.finish(cluster.id, spec)
  const save = (tx: Tx) => setRestoreDone(tx, cluster.id, { isVerified, bytes, replayedUntil: seen.replayedUntil })
  if (cluster.scratch) {
    // Locks of restored prepared transactions would block the checks of the drill for ever.
    await postgres.rollBackPrepared(cluster.id)
    return advance('ready', '', save)
  }
  await postgres.ensureGrants(cluster.id)
  await renewPasswords(cluster, world)
  await ensureArchive(cluster, world, await baseOf(cluster, spec, seen.endLsn, world))
  await postgres.ensureRunning(cluster.id, clusterSpec(cluster, hosting))
  await startPooler(cluster, world)
  const unreachable = await waitForEndpoints(cluster, world)
  if (unreachable && !isCausedByOwner(unreachable)) return wait(1, describeError(unreachable))
  return advance('ready', `restored from ${restore.sourceClusterId}`, save)
}

/**
 * True if connections fail because of restored settings of the owner, such as a revoked CONNECT, a connection limit or a
 * timeout. The cluster becomes ready as its source was, and its health shows the error. The codes are
 * transaction_timeout, insufficient_privilege, too_many_connections, idle_session_timeout, and undefined_file for a
 * missing library that every session loads.
 */
export function isCausedByOwner({ cause }: Error): boolean {
  const { code = '' } = (cause ?? {}) as { code?: string }
  return /^(25P04|42501|53300|57P05|58P01)$/.test(code)
}

/** Completes the verification of the backup that a ready cluster was restored from. Undefined while it runs. */
export async function keepVerified(cluster: Cluster, { db, restores }: World) {
  const plan = await findUnverifiedPlan(db, cluster.id)
  if (!plan) return undefined
  await restores.startVerification(cluster.id, { ...dataSpec(cluster), ...plan })
  const seen = await restores.inspectVerification(cluster.id)
  if (seen.is === 'running') return undefined
  if (seen.is === 'failed') {
    return advance('damaged', seen.reason, (tx) => recordDamage(tx, plan.backup, seen.damage ?? seen.reason))
  }
  await restores.remove(cluster.id)
  return wait(0, `backup ${plan.backup.label} is verified`, (tx) => setRestoreVerified(tx, cluster.id))
}

/** Until its first own backup, the cluster can be restored from its source's backup and WAL up to the branch. */
async function baseOf(cluster: Cluster, spec: RestoreSpec, endLsn: string, { postgres }: World): Promise<ArchiveBase> {
  const [clock] = await postgres.query<{ at: string }>(
    cluster.id,
    'postgres',
    `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at`,
  )
  const pieces = spec.pieces.map((piece, index) =>
    index === spec.pieces.length - 1 ? { ...piece, end: endLsn } : piece,
  )
  return { backup: spec.backup, pieces, at: clock!.at }
}
