// Which backup and which WAL a restore uses.
import { invalid } from '../../model/errors.ts'
import type { Backup } from '../../model/postgres/backup.ts'
import type { RestorePlan } from '../../model/postgres/restore.ts'
import { parseLsn } from '../../model/postgres/wal.ts'
import type { Micros } from '../../model/time.ts'
import type { Query } from '../db.ts'
import { findUsableBackup } from './backup.ts'
import type { Restore } from './restore.ts'
import { findRange, findRun, type RecoveryWindow, type Run } from './stretch.ts'

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

/** Plans a restore up to a position in a run of WAL. */
export async function planForPosition(db: Query, sourceId: string, run: Run, endLsn: string): Promise<RestorePlan> {
  const { epoch, runLsn } = run
  return planWith(sourceId, run, await findUsableBackup(db, sourceId, { epoch, runLsn, endLsn }), endLsn)
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
