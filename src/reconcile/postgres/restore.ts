import type { RestoreFailure, RestoreSpec } from '../../drivers/postgres/restore/driver.ts'
import { WalFileError } from '../../drivers/repository/driver.ts'
import { describeError } from '../../model/errors.ts'
import { waitUntil } from '../../model/poll.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import type { ArchiveBase, RestorePlan } from '../../model/postgres/restore.ts'
import { clusterSpec, dataSpec } from '../../model/postgres/spec.ts'
import { endOfRecords, formatLsn, parseLsn } from '../../model/postgres/wal.ts'
import { nowMicros } from '../../model/time.ts'
import type { Tx } from '../../store/db.ts'
import { loadCluster } from '../../store/postgres/cluster.ts'
import { recordDamage } from '../../store/postgres/damage.ts'
import {
  findUnverifiedPlan,
  type Restore,
  setRestoreDone,
  setRestoreLoss,
  setRestorePlan,
  setRestoreProgress,
  setRestoreVerified,
} from '../../store/postgres/restore.ts'
import { findRestorableRun, planForPosition } from '../../store/postgres/restore-plan.ts'
import { isScrubbed } from '../../store/postgres/scrub.ts'
import { advance, type World, wait } from '../step.ts'
import { ensureArchive } from './archive.ts'
import { handleFailure, recordUnreadable } from './damage.ts'
import { startPooler, waitForEndpoints } from './endpoint.ts'
import { findLogEnd, type PlanWithLoss, type ResolvedPlan } from './log-end.ts'
import { renewPasswords } from './password.ts'
import { ensureRecoveredArchive, handleRecoveryFailure, prepareRecovery } from './recover.ts'

/**
 * Short at first, because the recovery of a small cluster takes a tenth of a second. What takes long is looked at less often:
 * on a busy host, looking would slow it down further.
 */
function pauseSeconds({ stateSince }: Cluster): number {
  const passed = Number(nowMicros() - stateSince) / 1_000_000
  return Math.min(1, Math.max(0.05, passed / 20))
}

/** Initializes a restored cluster: copies the backup, replays WAL, and sets up passwords and an archive of its own. */
export async function initializeRestored(cluster: Cluster, restore: Restore, world: World) {
  if (restore.purpose === 'recover') {
    const preparing = await prepareRecovery(cluster, restore, world, planForNow)
    if (preparing) return preparing
  }
  const plan = await resolvePlan(restore, world)
  if (typeof plan === 'string') return wait(0.2, plan)
  if ('failure' in plan) return advance('failed', plan.failure)
  if ('loss' in plan) return resolveWithLoss(cluster, plan)
  if (plan !== restore.plan) return wait(0, 'resolved', (tx) => setRestorePlan(tx, cluster.id, plan))
  const spec: RestoreSpec = { ...dataSpec(cluster), ...plan }
  return (
    (await copy(cluster, restore, spec, world)) ??
    (await replay(cluster, restore, spec, world)) ??
    finish(cluster, restore, spec, world)
  )
}

function resolveWithLoss(cluster: Cluster, { loss, plan }: PlanWithLoss) {
  return wait(0, `resolved; ${loss}`, async (tx) => {
    await setRestorePlan(tx, cluster.id, plan)
    await setRestoreLoss(tx, cluster.id, loss)
  })
}

/** Determines the position at which the restored WAL ends. It is recorded, so that a repetition restores the same state. */
async function resolvePlan(restore: Restore, world: World): Promise<ResolvedPlan> {
  const { plan } = restore
  if (!plan) return planForNow(restore, world)
  return plan.search ? endAtTime(plan, plan.search, world) : plan
}

async function endAtTime(plan: RestorePlan, search: NonNullable<RestorePlan['search']>, world: World) {
  const own = plan.pieces.at(-1)!
  const range = { from: parseLsn(search.from), to: parseLsn(own.end) }
  const cut = await recordUnreadable(own, world, () =>
    world.repository.findCut(own.clusterId, own.epoch, own.timeline, BigInt(search.time), range),
  )
  if (cut instanceof Error) return { failure: cut.message }
  const { search: _, ...rest } = plan
  return endAt(rest, formatLsn(cut))
}

function endAt(plan: RestorePlan, end: string): RestorePlan {
  return { ...plan, pieces: [...plan.pieces.slice(0, -1), { ...plan.pieces.at(-1)!, end }] }
}

/** For a restore without a target: everything that the source has written up to now. */
async function planForNow({ sourceClusterId, acceptLoss }: Restore, world: World): Promise<ResolvedPlan> {
  const source = await loadCluster(world.db, sourceClusterId)
  const run = await findRestorableRun(world.db, sourceClusterId)
  if (!source || !run) return { failure: 'the source has no intact backup with its WAL any more' }
  const plan = await planForPosition(world.db, source.id, run)
  const own = plan.pieces.at(-1)!
  if (source.state === 'ready') {
    const end = await findEnd(source, own, world)
    return end === undefined ? 'waiting for the archive of the source' : endAt(plan, end)
  }
  // The receiver may have written more WAL after the last sample.
  const found = await recordUnreadable(own, world, () => findLogEnd(plan, run, acceptLoss, world))
  if (found instanceof WalFileError && acceptLoss) return `${found.message}; planning again`
  if (found instanceof Error) return { failure: found.message }
  if ('failure' in found) return found
  const ended = endAt(plan, found.end)
  return found.loss === null ? ended : { plan: ended, loss: found.loss }
}

async function findEnd(source: Cluster, own: RestorePlan['pieces'][number], world: World) {
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

/**
 * Each interruption starts the deadline again, because the work it undid was progress. More of them than a host is restarted
 * within one restore have a reason that does not go away, such as too little memory.
 */
const maxSetbacks = 20

/** Measuring the progress slows down the copy, so it is done only this often. */
const copyTimeoutSeconds = 2

async function copy(cluster: Cluster, restore: Restore, spec: RestoreSpec, world: World) {
  const { db, restores } = world
  // A drill verifies everything again.
  const trusted = restore.purpose !== 'drill' && (await isScrubbed(db, spec.backup))
  await restores.startCopy(cluster.id, { ...spec, trusted })
  const seen = await restores.inspectCopy(cluster.id, copyTimeoutSeconds)
  if (seen.is === 'done') return undefined
  if (seen.is === 'failed') return fail(cluster, restore, seen, world)
  if (seen.is === 'absent') return wait(pauseSeconds(cluster), 'starting the copy')
  const { bytesDone, bytesTotal, bytesVerified } = seen
  const setbacks = await setRestoreProgress(db, cluster.id, { phase: 'copying', bytesDone, bytesTotal, bytesVerified })
  if (setbacks > maxSetbacks) return advance('failed', `the copy was interrupted ${setbacks} times`)
  return wait(pauseSeconds(cluster), `copied ${bytesDone} of ${bytesTotal} bytes, verified ${bytesVerified}`)
}

async function replay(cluster: Cluster, restore: Restore, spec: RestoreSpec, world: World) {
  const { db, hosting, postgres, restores } = world
  await postgres.ensureRunning(cluster.id, { ...clusterSpec(cluster, hosting), closed: true })
  const seen = await restores.inspectRecovery(cluster.id, spec)
  if (seen.is === 'promoted') return undefined
  if (seen.is === 'failed') return fail(cluster, restore, seen, world)
  const { replayedUntil, replayedLsn, problem } = seen
  const setbacks = await setRestoreProgress(db, cluster.id, { phase: 'replaying', replayedUntil, replayedLsn })
  if (setbacks > maxSetbacks) {
    return advance(
      'failed',
      `the replay was interrupted ${setbacks} times${problem === undefined ? '' : `; ${problem}`}`,
    )
  }
  return wait(pauseSeconds(cluster), problem ?? (replayedUntil ? `replayed until ${replayedUntil}` : 'replaying'))
}

function fail(cluster: Cluster, restore: Restore, failure: RestoreFailure, world: World) {
  if (restore.purpose === 'recover') return handleRecoveryFailure(cluster, restore, failure, world)
  return handleFailure(restore, failure, world)
}

async function finish(cluster: Cluster, restore: Restore, spec: RestoreSpec, world: World) {
  const { db, hosting, postgres, restores } = world
  await setRestoreProgress(db, cluster.id, { phase: 'finishing' })
  const seen = await restores.inspectRecovery(cluster.id, spec)
  if (seen.is === 'failed') return fail(cluster, restore, seen, world)
  if (seen.is !== 'promoted') return wait(pauseSeconds(cluster), 'finishing')
  const isVerified = (await restores.inspectVerification(cluster.id)).is === 'passed'
  const bytes = await restores.finish(cluster.id, spec)
  const save = (tx: Tx) => setRestoreDone(tx, cluster.id, { isVerified, bytes, replayedUntil: seen.replayedUntil })
  if (cluster.scratch) {
    // Locks of restored prepared transactions would block the checks of the drill for ever.
    await postgres.rollBackPrepared(cluster.id)
    return advance('ready', '', save)
  }
  // The source may have been in the middle of an import.
  await world.imports.dropCopy(cluster.id)
  await postgres.ensureGrants(cluster.id)
  const isRecovery = restore.purpose === 'recover'
  if (!isRecovery) await renewPasswords(cluster, world)
  const base = await baseOf(cluster, spec, seen.endLsn, world)
  if (isRecovery) await ensureRecoveredArchive(cluster, restore, base, world)
  else await ensureArchive(cluster, world, base)
  await postgres.ensureRunning(cluster.id, clusterSpec(cluster, hosting))
  await startPooler(cluster, world)
  const unreachable = await waitForEndpoints(cluster, world)
  if (unreachable && !isCausedByOwner(unreachable, restore)) return wait(1, describeError(unreachable))
  const origin = isRecovery ? `recovered up to ${seen.endLsn}` : `restored from ${restore.sourceClusterId}`
  const loss = restore.loss === null ? '' : `, with a loss: ${restore.loss}`
  return advance('ready', `${origin}${loss}`, save)
}

/**
 * True if connections fail because of restored settings of the owner, such as a revoked CONNECT, a connection limit or a
 * timeout. The cluster becomes ready as its source was, and its health shows the error. The codes are
 * transaction_timeout, insufficient_privilege, too_many_connections, idle_session_timeout, and undefined_file for a
 * missing library that every session loads.
 */
export function isCausedByOwner(error: Error, { purpose }: Restore): boolean {
  // A recovered cluster has the passwords that its owner set with SQL.
  if (purpose === 'recover' && /authentication failed/.test(describeError(error))) return true
  const { code = '' } = (error.cause ?? {}) as { code?: string }
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
    const reason = seen.damage ?? seen.reason
    await db.transaction((tx) => recordDamage(tx, { backup: plan.backup, reason }))
    return advance('damaged', seen.reason)
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
