import { describeLogDamage, findLogDamage } from '../../model/postgres/log-damage.ts'
import { ownStart, type RestorePlan } from '../../model/postgres/restore.ts'
import { formatLsn, parseLsn } from '../../model/postgres/wal.ts'
import { findHoleAfter } from '../../store/postgres/recover.ts'
import type { Run } from '../../store/postgres/stretch.ts'
import type { World } from '../step.ts'

/** A plan, or one that ends before damaged WAL, or why there is none; or what to wait for. */
export type ResolvedPlan = RestorePlan | PlanWithLoss | { failure: string } | string

export interface PlanWithLoss {
  plan: RestorePlan
  loss: string
}

export type LogEnd = { end: string; loss: string | null } | { failure: string }

/**
 * The end of the log of a source that does not run any more. A log that is damaged before the end that was recorded of it
 * is used up to the damage, if the caller accepts that.
 */
export async function findLogEnd(
  plan: RestorePlan,
  run: Run,
  acceptLoss: boolean,
  { db, repository }: Pick<World, 'db' | 'repository'>,
): Promise<LogEnd> {
  const { clusterId, epoch, timeline } = plan.pieces.at(-1)!
  const from = ownStart(plan)
  const hole = await findHoleAfter(db, clusterId, epoch, formatLsn(from))
  if (hole && !acceptLoss) return { failure: `the write-ahead log is damaged: ${hole.reason}` }
  const limit = hole && parseLsn(hole.fromLsn)
  const tail = await repository.archiveTail(clusterId, epoch, timeline, from, limit)
  const damage = hole ? undefined : findLogDamage(tail, run, from)
  if (damage && !acceptLoss) return { failure: `the write-ahead log is damaged: ${describeLogDamage(damage)}` }
  const altered = acceptLoss ? await repository.findAlteredSegment(clusterId, epoch, timeline, from) : undefined
  if (altered === undefined && !damage && !hole) return { end: formatLsn(tail!.end), loss: null }
  const isAltered = altered !== undefined && altered < (damage?.position ?? tail?.end ?? from)
  const intact = isAltered ? await repository.archiveTail(clusterId, epoch, timeline, from, altered) : tail
  const end = intact?.end ?? from
  const needed = parseLsn(plan.backup.clusterId === clusterId ? plan.backup.stopLsn : formatLsn(from))
  if (end < needed) {
    const what = `backup ${plan.backup.label} needs it up to ${formatLsn(needed)}`
    return { failure: `the write-ahead log is damaged: it is intact up to ${formatLsn(end)} only, and ${what}` }
  }
  const changed = 'a segment was changed or belongs to another cluster'
  const reason = isAltered ? changed : (hole?.reason ?? damage!.reason)
  const recorded = damage?.recorded ?? { lsn: parseLsn(run.latestLsn), at: run.latest }
  return { end: formatLsn(end), loss: describeLogDamage({ position: end, recorded, reason }) }
}
