import { waitUntil } from '../../drivers/host/process.ts'
import type { RestoreSpec } from '../../drivers/postgres/restore/restore.ts'
import { clusterSpec, dataOptions } from '../../drivers/postgres/spec.ts'
import { endPrepared } from '../../drivers/postgres/sql/prepared.ts'
import { ensureRights } from '../../drivers/postgres/sql/rights.ts'
import { forgetForeignPasswords, listUsers, setPassword } from '../../drivers/postgres/sql/role.ts'
import { describeError } from '../../model/errors.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import type { RestorePlan } from '../../model/postgres/restore.ts'
import { newPassword } from '../../model/postgres/user.ts'
import { endOfRecords, formatLsn, parseLsn } from '../../model/postgres/wal.ts'
import { seal } from '../../model/seal.ts'
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
import { isScrubbed, noteDamage } from '../../store/postgres/scrub.ts'
import { deleteStoredUser, insertUser } from '../../store/postgres/user.ts'
import { advance, type World, wait } from '../step.ts'
import { ensureArchive } from './archive.ts'
import { startPooler, waitForEndpoints } from './cluster.ts'

/** A short look again: recovery of a small cluster takes a tenth of a second. */
const soon = 0.05

/** Brings a restored cluster from nothing to `ready`: copy, replay, own credentials, own archive. */
export async function initializeRestored(cluster: Cluster, restore: Restore, world: World) {
  const plan = restore.plan ?? (await resolveEnd(restore, world))
  if (typeof plan === 'string') return wait(0.2, plan)
  if (!restore.plan) return wait(0, 'resolved', (tx) => setRestorePlan(tx, cluster.id, plan))
  const spec: RestoreSpec = { ...dataOptions(cluster), ...plan }
  return (
    (await copy(cluster, restore, spec, world)) ??
    (await replay(cluster, restore, spec, world)) ??
    finish(cluster, restore, spec, world)
  )
}

/** A fork takes everything that its source has written by now; a deleted source has written everything. */
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
    // The receiver wrote on after the last sample.
    const tail = await world.repository.archiveTail(own.clusterId, own.epoch, own.timeline, parseLsn(latest))
    return tail === undefined || tail.end < parseLsn(latest) ? latest : formatLsn(tail.end)
  }
  const [now] = await world.postgres.query<{ lsn: string }>(
    source.id,
    'postgres',
    'select pg_current_wal_insert_lsn() as lsn',
  )
  const end = endOfRecords(parseLsn(now!.lsn))
  // A busy source moves on, but the place that was read once is archived in a moment.
  const isArchived = async () => {
    const slot = await world.receiver.inspectSlot(source.id, `berth_${own.epoch}`)
    return slot.is === 'ok' && (slot.restartLsn ?? 0n) >= end
  }
  return (await waitUntil(isArchived, archiveSeconds)) ? formatLsn(end) : undefined
}

const archiveSeconds = 3

/** Long enough to spare the machine that copies, and short enough to tell how far it is. */
const patienceSeconds = 2

async function copy(cluster: Cluster, restore: Restore, spec: RestoreSpec, world: World) {
  const { db, restores } = world
  // A drill is there to read everything.
  const trusted = restore.purpose !== 'drill' && (await isScrubbed(db, spec.backup))
  await restores.startCopy(cluster.id, { ...spec, trusted })
  const seen = await restores.inspectCopy(cluster.id, patienceSeconds)
  if (seen.is === 'done') return undefined
  if (seen.is === 'failed' && seen.damage !== undefined) return leaveDamaged(restore, seen.reason, seen.damage, world)
  if (seen.is === 'failed') return advance('failed', seen.reason)
  if (seen.is === 'absent') return wait(soon, 'starting the copy')
  const { bytesDone, bytesTotal, bytesVerified } = seen
  await setRestoreProgress(db, cluster.id, { phase: 'copying', bytesDone, bytesTotal, bytesVerified })
  return wait(soon, `copied ${bytesDone} of ${bytesTotal} bytes, verified ${bytesVerified}`)
}

/** One damaged backup must not keep a moment from being restored that an older one leads to as well. */
async function leaveDamaged(restore: Restore, reason: string, damage: string, { db, restores }: World) {
  const { clusterId } = restore
  const plan = restore.plan!
  await db.transaction((tx) => noteDamage(tx, plan.backup, damage))
  if (!(await findOtherPlan(db, restore, plan))) return advance('failed', reason)
  // Its end would be taken for that of the next copy.
  await restores.remove(clusterId)
  return wait(0, `${reason}; an older one is taken`, async (tx) => {
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
  if (seen.is === 'failed') return leaveLog(restore, seen.reason)
  if (seen.is === 'ended-early') {
    await restores.continueToEnd(cluster.id, spec)
    return wait(soon, 'replaying to the end of the log')
  }
  const { replayedUntil, replayedLsn } = seen
  await setRestoreProgress(db, cluster.id, { phase: 'replaying', replayedUntil, replayedLsn })
  return wait(soon, replayedUntil ? `replayed until ${replayedUntil}` : 'replaying')
}

/** Whatever is wrong with the log, a new backup of the source needs none of it. */
function leaveLog({ sourceClusterId }: Restore, reason: string) {
  return advance('failed', reason, async (tx) => {
    const source = await loadCluster(tx, sourceClusterId)
    if (source?.state === 'ready') await queueBackup(tx, source.id)
  })
}

async function finish(cluster: Cluster, restore: Restore, spec: RestoreSpec, world: World) {
  const { db, hosting, postgres, restores } = world
  await setRestoreProgress(db, cluster.id, { phase: 'finishing' })
  const seen = await restores.inspectRecovery(cluster.id, spec)
  if (seen.is === 'failed') return leaveLog(restore, seen.reason)
  if (seen.is !== 'promoted') return wait(soon, 'finishing')
  const isVerified = (await restores.inspectVerification(cluster.id)).is === 'passed'
  const bytes = await restores.finish(cluster.id, spec)
  const save = (tx: Tx) => setRestoreDone(tx, cluster.id, { isVerified, bytes, replayedUntil: seen.replayedUntil })
  if (cluster.scratch) {
    // The checks of a drill would wait for ever for a lock that came along, and other drills for this one.
    await endPrepared(postgres, cluster.id)
    return advance('ready', '', save)
  }
  await ensureRights(postgres, cluster.id)
  await renewPasswords(cluster, world)
  await ensureArchive(cluster, world, await baseOf(cluster, spec, seen.endLsn, world))
  await postgres.ensureRunning(cluster.id, clusterSpec(cluster, hosting))
  await startPooler(cluster, world)
  const unreachable = await waitForEndpoints(cluster, world)
  if (unreachable && !isOwnersRefusal(unreachable)) return wait(1, describeError(unreachable))
  return advance('ready', `restored from ${restore.sourceClusterId}`, save)
}

/**
 * A server that is restored says no as its source did, when the owner lets nobody connect or set what ends every session
 * at once. It is as he wants it, and its health tells. What the codes mean: transaction_timeout, insufficient_privilege,
 * too_many_connections, idle_session_timeout, undefined_file, which is a library that every session loads.
 */
function isOwnersRefusal({ cause }: Error): boolean {
  const { code = '' } = (cause ?? {}) as { code?: string }
  return /^(25P04|42501|53300|57P05|58P01)$/.test(code)
}

/** Sees the verification of a ready cluster's backup to its end. Undefined while there is nothing to say. */
export async function keepVerified(cluster: Cluster, { db, restores }: World) {
  const plan = await findUnverifiedPlan(db, cluster.id)
  if (!plan) return undefined
  await restores.startVerification(cluster.id, { ...dataOptions(cluster), ...plan })
  const seen = await restores.inspectVerification(cluster.id)
  if (seen.is === 'running') return undefined
  if (seen.is === 'failed') {
    return advance('damaged', seen.reason, (tx) => noteDamage(tx, plan.backup, seen.damage ?? seen.reason))
  }
  await restores.remove(cluster.id)
  return wait(0, `backup ${plan.backup.label} is verified`, (tx) => setRestoreVerified(tx, cluster.id))
}

/** Whoever knew a password of the source knows none of the new cluster's. */
async function renewPasswords(cluster: Cluster, { db, postgres, encryptionKey }: World): Promise<void> {
  await forgetForeignPasswords(postgres, cluster.id)
  for (const { name, role } of await listUsers(postgres, cluster.id)) {
    const password = newPassword()
    await deleteStoredUser(db, cluster.id, name)
    await insertUser(db, cluster.id, { username: name, role, password: seal(encryptionKey, Buffer.from(password)) })
    await setPassword(postgres, cluster.id, name, password)
  }
}

/** What it can be restored from before it has a backup of its own: its parent's, and the log up to where they part. */
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
