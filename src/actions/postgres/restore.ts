import { requireClusterWriter } from '../../model/account/caller.ts'
import { BerthError, badRequest, invalid, notFound } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import type { Backup } from '../../model/postgres/backup.ts'
import { type Cluster, type ClusterDetails, requireReady } from '../../model/postgres/cluster.ts'
import {
  clearWindows,
  hasShown,
  labelTime,
  type Pass,
  type RestorePlan,
  type RestoreRequest,
  restoredName,
} from '../../model/postgres/restore.ts'
import { type Micros, nowMicros, parseTime, toRfc3339 } from '../../model/time.ts'
import { joinTransaction, type Tx } from '../../store/db.ts'
import { lockBackupByLabel } from '../../store/postgres/backup.ts'
import { getClusterDetails, getVisibleCluster, insertCluster, type NewCluster } from '../../store/postgres/cluster.ts'
import { findLoss } from '../../store/postgres/recover.ts'
import { inherited, insertPins, insertRestore, type NewRestore, pinsOf } from '../../store/postgres/restore.ts'
import { findRestorableRun, planForPosition, planForTime } from '../../store/postgres/restore-plan.ts'
import { lockDeletedCluster } from '../../store/postgres/retention.ts'
import { listPasses, listWindows } from '../../store/postgres/stretch.ts'
import { enqueue } from '../../store/work.ts'
import type { Context } from '../context.ts'
import { checkClusterName } from './cluster.ts'

/** Returns the source if the caller may restore it. Runs before the body is validated, because 404 takes precedence over 422. */
export async function getSource(ctx: Context, clusterId: string): Promise<Cluster> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId)
  requireClusterWriter(caller)
  if (cluster.state === 'deleting') throw notFound('Cluster not found')
  return cluster
}

/** Independent statements run concurrently, because under load a round trip costs more than a statement. */
export async function restoreCluster(ctx: Context, clusterId: string, input: RestoreRequest): Promise<ClusterDetails> {
  const { backupId, time } = await checkedAfterSource(ctx, clusterId, () => checkRequest(input))
  return ctx.db.transaction(async (tx) => {
    const isLabel = backupId !== undefined && labelTime(backupId) !== undefined
    const [source, backup] = await Promise.all([
      getSource(ctx, clusterId),
      isLabel ? lockBackupByLabel(tx, clusterId, backupId) : undefined,
    ])
    const resolved = time === undefined ? resolveBackup(source, backupId!, backup) : await resolveTime(tx, source, time)
    const restore: NewRestore = {
      clusterId: newId(),
      sourceClusterId: source.id,
      backupId: backupId ?? null,
      pitrTime: time ?? null,
      plan: resolved.plan,
      purpose: 'restore',
    }
    return insertRestoredCluster(ctx, tx, source, present(input.name), resolved.at, restore, resolved.plan)
  })
}

/** An error about the source takes precedence over a validation error. */
async function checkedAfterSource<T>(ctx: Context, clusterId: string, check: () => T): Promise<T> {
  try {
    return check()
  } catch (refusal) {
    await getSource(ctx, clusterId)
    throw refusal
  }
}

function checkRequest(input: RestoreRequest): { backupId?: string | undefined; time?: Micros | undefined } {
  const backupId = present(input.backup_id)
  const pitrTime = present(input.pitr_time)
  if (backupId === undefined && pitrTime === undefined) throw invalid('one of backup_id or pitr_time is required')
  if (backupId !== undefined && pitrTime !== undefined) throw invalid('backup_id and pitr_time are mutually exclusive')
  return { backupId, time: pitrTime === undefined ? undefined : checkTime(pitrTime) }
}

interface Resolved {
  plan: RestorePlan
  /** The time in the generated name: the backup's start or the restore target. */
  at: Micros
}

function resolveBackup(source: Cluster, label: string, backup: Backup | undefined): Resolved {
  if (!backup) throw notFound(`Backup ${label} not found for cluster ${source.id}`)
  if (backup.state !== 'completed') throw badRequest(`restore failed: backup ${label} is ${backup.state}`)
  if (backup.damage !== null)
    throw badRequest(`restore failed: backup ${label} is damaged: ${backup.damage}; choose another backup`)
  const { startLsn, stopLsn, timeline, epoch } = backup
  return {
    at: labelTime(label)!,
    plan: {
      backup: { clusterId: source.id, label, startLsn: startLsn!, stopLsn: stopLsn! },
      pieces: [{ clusterId: source.id, epoch: epoch!, timeline: timeline!, end: stopLsn! }],
      timeline: timeline!,
    },
  }
}

async function resolveTime(tx: Tx, source: Cluster, time: Micros): Promise<Resolved> {
  const passes = await listPasses(tx, source.id)
  const windows = await listWindows(tx, source.id)
  const window = windows.find(({ earliest, latest }) => earliest <= time && time <= latest)
  const shown = passes.filter((pass) => hasShown(pass, time))
  if (window && shown.some(({ stretchId }) => stretchId !== window.stretchId)) throw refuseRepeatedTime(shown)
  if (!window) throw refuseTime(source, passes, time)
  return { at: time, plan: await planForTime(tx, source.id, window, time) }
}

function refuseRepeatedTime(shown: Pass[]): BerthError {
  const from = shown.map((pass) => pass.from).reduce((a, b) => (a > b ? a : b))
  return invalid(
    `pitr_time is ambiguous: the clock of the cluster was changed and showed the times from ${toRfc3339(from)} on more than once; choose a time in recovery_windows, or a backup`,
  )
}

function refuseTime(source: Cluster, passes: Pass[], time: Micros): BerthError {
  const known = clearWindows(passes)
  const newest = known.at(-1)
  if (!newest) {
    const reason = source.state === 'ready' ? 'no backup has completed yet' : `the cluster is ${source.state}`
    return invalid(`point-in-time restore is unavailable: ${reason}`)
  }
  const after = known.findIndex((window) => time < window.earliest)
  if (after > 0) {
    const [from, to] = [known[after - 1]!.latest, known[after]!.earliest]
    return invalid(`pitr_time is in a gap of the archive (${toRfc3339(from)} to ${toRfc3339(to)})`)
  }
  const { earliest, latest } = newest
  return invalid(`pitr_time is outside the recovery window ${toRfc3339(earliest)} to ${toRfc3339(latest)}`)
}

/** Copies the current state of the source. The reconciler asks the source for its current WAL position. */
export async function forkCluster(
  ctx: Context,
  clusterId: string,
  name: string | undefined | null,
): Promise<ClusterDetails> {
  const source = await getSource(ctx, clusterId)
  requireReady(source, 'it can be forked')
  return ctx.db.transaction(async (tx) => {
    const plan = await planNewest(tx, source.id, 'fork')
    return copyWhole(ctx, tx, source, present(name) ?? forkName(source.name), plan, { purpose: 'fork' })
  })
}

/** Plans a copy of everything that a running cluster has written. */
export async function planNewest(tx: Tx, clusterId: string, what: string): Promise<RestorePlan> {
  const run = await findRestorableRun(tx, clusterId)
  if (!run) throw invalid(`${what} is unavailable: no backup has completed yet`)
  const loss = await findLoss(tx, clusterId)
  if (loss) throw invalid(`${what} is unavailable until a new backup has completed: ${loss.reason}`)
  return planForPosition(tx, clusterId, run)
}

/** Restores a deleted cluster to its last state, as a new cluster. */
export async function undeleteCluster(
  ctx: Context,
  clusterId: string,
  name: string | undefined | null,
  acceptLoss = false,
): Promise<ClusterDetails> {
  const { caller, cluster } = await getVisibleCluster(ctx.db, ctx.tokenHash, clusterId, { deleted: true })
  requireClusterWriter(caller)
  if (cluster.state === 'purged') throw gone()
  if (cluster.state !== 'deleted') throw invalid(`Cluster is ${cluster.state}; only a deleted one can be undeleted`)
  return ctx.db.transaction(async (tx) => {
    if (!(await lockDeletedCluster(tx, cluster.id))) throw gone()
    const run = await findRestorableRun(tx, cluster.id)
    if (!run) throw invalid('undelete is unavailable: the cluster had no completed backup')
    const plan = await planForPosition(tx, cluster.id, run)
    return copyWhole(ctx, tx, cluster, present(name) ?? cluster.name, plan, { purpose: 'undelete', acceptLoss })
  })
}

function gone(): BerthError {
  return new BerthError('gone', 'Its backups are gone; the cluster cannot be undeleted')
}

/** The reconciler determines the end of the WAL. */
function copyWhole(
  ctx: Context,
  tx: Tx,
  source: Cluster,
  name: string,
  needed: RestorePlan,
  how: Pick<NewRestore, 'purpose' | 'acceptLoss'>,
) {
  const restore = { clusterId: newId(), sourceClusterId: source.id, backupId: null, pitrTime: null, plan: null, ...how }
  return insertRestoredCluster(ctx, tx, source, name, nowMicros(), restore, needed)
}

/** Inserts the cluster, its restore and its pins and enqueues work, in the caller's transaction. */
export async function insertRestoredCluster(
  ctx: Context,
  tx: Tx,
  source: Cluster,
  name: string | undefined,
  at: Micros,
  restore: NewRestore,
  needed: RestorePlan,
): Promise<ClusterDetails> {
  const id = restore.clusterId
  const cluster = { ...inherited(source), id }
  const chosen = checkClusterName(name)
  if (chosen === undefined) await insertWithGeneratedName(tx, source, cluster, at)
  else if (!(await insertCluster(tx, { ...cluster, name: chosen })))
    throw invalid(`name ${chosen} has already been taken`)
  const inserted = [insertRestore(tx, restore), insertPins(tx, id, pinsOf(needed)), enqueue(tx, 'cluster', id)]
  const [details] = await Promise.all([
    getClusterDetails(joinTransaction(tx), ctx.tokenHash, id, { extras: true }),
    ...inserted,
  ])
  return details
}

// A backup may be restored many times, so one statement tries many names.
async function insertWithGeneratedName(tx: Tx, source: Cluster, cluster: Omit<NewCluster, 'name'>, at: Micros) {
  for (let count = 20; ; count += 20) {
    const others = Array.from({ length: count }, (_, index) => restoredName(source.name, at, index + 2))
    if (await insertCluster(tx, { ...cluster, name: restoredName(source.name, at, 1) }, others)) return
  }
}

/** Blank strings count as absent. */
function present(value: string | null | undefined): string | undefined {
  return value === undefined || value === null || value.trim() === '' ? undefined : value
}

function checkTime(text: string): Micros {
  const time = parseTime(text)
  if (time === undefined) throw invalid('pitr_time must be an RFC 3339 timestamp with a UTC offset')
  return time
}

function forkName(source: string): string {
  return `${source.slice(0, 58).replace(/-+$/, '')}-fork`
}
