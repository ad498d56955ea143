// Which backup and which WAL a restore uses.
import { invalid } from '../../model/errors.ts'
import type { Backup } from '../../model/postgres/backup.ts'
import type { RestorePlan } from '../../model/postgres/restore.ts'
import { formatLsn, lastLsn, parseLsn } from '../../model/postgres/wal.ts'
import type { Micros } from '../../model/time.ts'
import type { Query } from '../db.ts'
import { findUsableBackup } from './backup.ts'
import type { Restore } from './restore.ts'
import { findRange, findRun, listWindows, type RecoveryWindow, type Run } from './stretch.ts'

/** Plans a restore of a time in a window. Its position is searched for in the WAL when the restore begins. */
export async function planForTime(
  db: Query,
  sourceId: string,
  window: RecoveryWindow,
  time: Micros,
): Promise<RestorePlan> {
  const { from, to } = await findRange(db, window, time)
  const { epoch, runLsn, fromLsn } = window
  const backup = await findUsableBackup(db, sourceId, {
    epoch,
    runLsn,
    endLsn: to,
    stopped: { by: time, after: fromLsn },
  })
  const plan = planWith(sourceId, window, backup, to)
  return { ...plan, search: { time: time.toString(), from: laterOf(from, backup?.stopLsn) } }
}

/** Plans a restore up to a position in a run of WAL, or up to its end. */
export async function planForPosition(
  db: Query,
  sourceId: string,
  run: Run,
  endLsn = formatLsn(lastLsn),
): Promise<RestorePlan> {
  const { epoch, runLsn } = run
  return planWith(sourceId, run, await findUsableBackup(db, sourceId, { epoch, runLsn, endLsn }), endLsn)
}

/** The newest WAL that can be restored. If it is not the newest of all, a hole is behind it and no backup behind that. */
export async function findRestorableRun(db: Query, clusterId: string): Promise<Run | undefined> {
  const run = await findRun(db, clusterId)
  if (run?.base) return run
  const everything = formatLsn(lastLsn)
  if (run && (await findUsableBackup(db, clusterId, { ...run, endLsn: everything }))) return run
  return (await listWindows(db, clusterId)).at(-1)
}

/** Whether there is anything to restore. A restored cluster has no window yet in its first seconds, but a base. */
export async function isRestorable(db: Query, clusterId: string): Promise<boolean> {
  return (await findRestorableRun(db, clusterId)) !== undefined
}

/** Plans the restore from an older backup. Undefined when there is none, or when this backup was requested by label. */
export async function findOtherPlan(db: Query, restore: Restore, plan: RestorePlan): Promise<RestorePlan | undefined> {
  if (restore.backupId !== null || restore.purpose === 'drill') return undefined
  const { clusterId, epoch } = plan.pieces[0]!
  const endLsn = plan.backup.stopLsn
  const run = await findRun(db, clusterId, { epoch, lsn: endLsn })
  if (!run) return undefined
  const backup = await findUsableBackup(db, clusterId, { epoch, runLsn: run.runLsn, endLsn })
  if (backup) return backup.label === plan.backup.label ? undefined : { ...plan, backup: placeOf(backup) }
  return run.base ? { ...plan, backup: run.base.backup, pieces: [...run.base.pieces, ...plan.pieces] } : undefined
}

function planWith(
  sourceId: string,
  { epoch, timeline, base }: Pick<Run, 'epoch' | 'timeline' | 'base'>,
  backup: Backup | undefined,
  end: string,
): RestorePlan {
  const own = { clusterId: sourceId, epoch, timeline, end }
  if (backup) return { backup: placeOf(backup), pieces: [own], timeline }
  if (!base) throw invalid('point-in-time restore is unavailable: the backup it needs is being removed')
  return { backup: base.backup, pieces: [...base.pieces, own], timeline }
}

function placeOf({ clusterId, label, startLsn, stopLsn }: Backup): RestorePlan['backup'] {
  return { clusterId, label, startLsn: startLsn!, stopLsn: stopLsn! }
}

function laterOf(a: string, b: string | null | undefined): string {
  return b && parseLsn(b) > parseLsn(a) ? b : a
}
