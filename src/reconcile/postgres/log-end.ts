import { describeLogDamage, findLogDamage } from '../../model/postgres/log-damage.ts'
import { ownStart, type RestorePlan } from '../../model/postgres/restore.ts'
import { formatLsn, parseLsn } from '../../model/postgres/wal.ts'
import type { RecoveryWindow } from '../../store/postgres/archive.ts'
import type { World } from '../step.ts'

export type LogEnd = { end: string; loss: string | null } | { failure: string }

/**
 * The end of the log of a source that does not run any more. A log that is damaged before the end that was recorded of it
 * is used up to the damage, if the caller accepts that.
 */
export async function findLogEnd(
  plan: RestorePlan,
  window: RecoveryWindow,
  acceptLoss: boolean,
  { repository }: Pick<World, 'repository'>,
): Promise<LogEnd> {
  const { clusterId, epoch, timeline } = plan.pieces.at(-1)!
  const from = ownStart(plan)
  const tail = await repository.archiveTail(clusterId, epoch, timeline, from)
  const damage = findLogDamage(tail, window, from)
  if (damage && !acceptLoss) return { failure: `the write-ahead log is damaged: ${describeLogDamage(damage)}` }
  const altered = acceptLoss ? await repository.findAlteredSegment(clusterId, epoch, timeline, from) : undefined
  if (altered === undefined && !damage) return { end: formatLsn(tail!.end), loss: null }
  const isAltered = altered !== undefined && altered < (damage?.position ?? tail!.end)
  const intact = isAltered ? await repository.archiveTail(clusterId, epoch, timeline, from, altered) : tail
  const end = intact?.end ?? from
  const needed = parseLsn(plan.backup.clusterId === clusterId ? plan.backup.stopLsn : formatLsn(from))
  if (end < needed) {
    const what = `backup ${plan.backup.label} needs it up to ${formatLsn(needed)}`
    return { failure: `the write-ahead log is damaged: it is intact up to ${formatLsn(end)} only, and ${what}` }
  }
  const reason = isAltered ? 'a segment was changed or belongs to another cluster' : damage!.reason
  const recorded = damage?.recorded ?? { lsn: parseLsn(window.latestLsn), at: window.latest }
  return { end: formatLsn(end), loss: describeLogDamage({ position: end, recorded, reason }) }
}
