import type { RestoreSpec } from '../../drivers/postgres/restore/driver.ts'
import { WalFileError } from '../../drivers/repository/driver.ts'
import { describeError } from '../../model/errors.ts'
import { waitUntil } from '../../model/poll.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import type { ArchiveBase, RestorePlan } from '../../model/postgres/restore.ts'
import { clusterSpec, dataSpec } from '../../model/postgres/spec.ts'
import { endOfRecords, formatLsn, parseLsn } from '../../model/postgres/wal.ts'
import type { Tx } from '../../store/db.ts'
import { queueBackup } from '../../store/postgres/backup.ts'
import { loadCluster } from '../../store/postgres/cluster.ts'
import {
  findUnverifiedPlan,
  insertPins,
  pinsOf,
  type Restore,
  setRestoreDone,
  setRestorePlan,
  setRestoreProgress,
  setRestoreVerified,
} from '../../store/postgres/restore.ts'
import { findOtherPlan, planForPosition } from '../../store/postgres/restore-plan.ts'
import { isScrubbed, recordDamage } from '../../store/postgres/scrub.ts'
import { findRun } from '../../store/postgres/stretch.ts'
import { advance, type World, wait } from '../step.ts'
import { ensureArchive } from './archive.ts'
import { startPooler, waitForEndpoints } from './endpoint.ts'
import { renewPasswords } from './password.ts'

/** Short, because the recovery of a small cluster takes a tenth of a second. */
const pauseSeconds = 0.05

/** Initializes a restored cluster: copies the backup, replays WAL, and sets up passwords and an archive of its own. */
export async function initializeRestored(cluster: Cluster, restore: Restore, world: World) {
  const plan = await resolvePlan(restore, world)
  if (plan instanceof Error) return failAndBackUp(restore, plan.message)
  if (typeof plan === 'string') return wait(0.2, plan)
  if (plan !== restore.plan) return wait(0, 'resolved', (tx) => setRestorePlan(tx, cluster.id, plan))
  const spec: RestoreSpec = { ...dataSpec(cluster), ...plan }
  return (
    (await copy(cluster, restore, spec, world)) ??
    (await replay(cluster, restore, spec, world)) ??
    finish(cluster, restore, spec, world)
  )
}

/** Determines the position at which the restored WAL ends. It is recorded, so that a repetition restores the same state. */
async function resolvePlan({ plan, sourceClusterId }: Restore, world: World): Promise<RestorePlan | Error | string> {
  if (plan?.search) {
    return endAtTime(plan, plan.search, world).catch((error: Error) => {
      if (error instanceof WalFileError) return error
      throw error
    })
  }
  return plan ?? (await planForNow(sourceClusterId, world))
}

async function endAtTime(plan: RestorePlan, search: NonNullable<RestorePlan['search']>, { repository }: World) {
  const { clusterId, epoch, timeline, end } = plan.pieces.at(-1)!
  const range = { from: parseLsn(search.from), to: parseLsn(end) }
  const cut = await repository.findCut(clusterId, epoch, timeline, BigInt(search.time), range)
  const { search: _, ...rest } = plan
  return endAt(rest, formatLsn(cut))
}

function endAt(plan: RestorePlan, end: string): RestorePlan {
  return { ...plan, pieces: [...plan.pieces.slice(0, -1), { ...plan.pieces.at(-1)!, end }] }
}

/** For a restore without a target: everything that the source has written up to now. */
async function planForNow(sourceId: string, world: World): Promise<RestorePlan | string> {
  const source = await loadCluster(world.db, sourceId)
  const run = await findRun(world.db, sourceId)
  if (!source || !run) throw new Error('the source has no recovery window any more')
  const plan = await planForPosition(world.db, source.id, run, run.latestLsn)
  const end = await findEnd(source, plan.pieces.at(-1)!, run.latestLsn, world)
  return end === undefined ? 'waiting for the archive of the source' : endAt(plan, end)
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
function isCausedByOwner({ cause }: Error): boolean {
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

/** The cluster can be restored from its source's backup and WAL up to the branch, and its own WAL after it. */
async function baseOf(cluster: Cluster, spec: RestoreSpec, endLsn: string, { postgres }: World): Promise<ArchiveBase> {
  const [clock] = await postgres.query<{ lsn: string; at: string }>(
    cluster.id,
    'postgres',
    `select pg_current_wal_insert_lsn()::text as lsn,
       to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at`,
  )
  const pieces = spec.pieces.map((piece, index) =>
    index === spec.pieces.length - 1 ? { ...piece, end: endLsn } : piece,
  )
  return { backup: spec.backup, pieces, at: clock!.at, lsn: formatLsn(endOfRecords(parseLsn(clock!.lsn))) }
}
