// Determines from the archive alone what can be restored from it.
import type { BackupDescription, Repository } from '../../drivers/repository/driver.ts'
import { newId } from '../../model/ids.ts'
import type { LogDamage } from '../../model/postgres/log-damage.ts'
import { formatLsn, parseLsn } from '../../model/postgres/wal.ts'
import type { Micros } from '../../model/time.ts'
import { parseTime } from '../../model/time.ts'
import type { AdoptedBackup, AdoptedEpoch } from '../../store/postgres/adopt.ts'

/** Commit timestamps are not in WAL order, but deviate from it by far less than this. */
const settleMicros = 1_000_000n

export interface ReadEpoch {
  backups: AdoptedBackup[]
  /** Undefined if no backup has the WAL it needs. */
  epoch: AdoptedEpoch | undefined
  /** Set if the log does not contain everything that was recorded of it. */
  damage?: LogDamage | undefined
}

type Archives = Pick<Repository, 'archiveEnd' | 'archiveTail'>
type Tail = NonNullable<Awaited<ReturnType<Archives['archiveTail']>>>

/**
 * The epoch covers the newest gapless part of the archive. A backup before a gap is recorded as damaged, because its
 * recovery window would include times that cannot be restored. A pinned backup may lose the WAL after it to retention, so
 * it remains usable alone.
 */
export async function readEpoch(
  repository: Archives,
  descriptions: BackupDescription[],
  pinned: Set<string>,
  /** Backups that are known to be damaged, with the reason. */
  damaged = new Map<string, string>(),
): Promise<ReadEpoch> {
  const backups: AdoptedBackup[] = []
  const usable: BackupDescription[] = []
  let tail: Tail | undefined
  let end: bigint | undefined
  for (const description of descriptions.toReversed()) {
    const { clusterId, epoch, timeline, startLsn } = description
    const reached = await repository.archiveEnd(clusterId, epoch, timeline, parseLsn(startLsn))
    const found = tail ?? (await tailFrom(repository, description))
    const known = damaged.get(description.label)
    const isUsable = known === undefined && hasEndOf(description, found) && (!tail || reached === end)
    const isPinned = pinned.has(description.label)
    const isAlone =
      known === undefined && !isUsable && isPinned && hasEndOf(description, await tailFrom(repository, description))
    if (isUsable) {
      tail = found
      end = reached
      usable.push(description)
    }
    const damage = isUsable || isAlone ? null : (known ?? 'the write-ahead log it needs is incomplete')
    backups.push({ ...backupOf(description), damage, pinned: isPinned, alone: isAlone })
  }
  return { backups, epoch: tail && epochOf(usable, tail), damage: tail?.damage }
}

function tailFrom(repository: Archives, { clusterId, epoch, timeline, startLsn }: BackupDescription) {
  return repository.archiveTail(clusterId, epoch, timeline, parseLsn(startLsn))
}

function hasEndOf({ stopLsn }: BackupDescription, tail: Tail | undefined): boolean {
  return tail !== undefined && tail.end >= parseLsn(stopLsn)
}

function backupOf(description: BackupDescription) {
  const { label, epoch, timeline, startLsn, stopLsn, startedAt, stoppedAt, sizeBytes } = description
  return { id: newId(), label, epoch, timeline, startLsn, stopLsn, startedAt, stoppedAt, sizeBytes }
}

/** Takes the backups newest first. The end of the window is that of the last sample of the source, or a little earlier. */
function epochOf(backups: BackupDescription[], tail: Tail): AdoptedEpoch {
  const newest = backups[0]!
  const oldest = backups.at(-1)!
  return {
    epoch: newest.epoch,
    timeline: newest.timeline,
    startLsn: oldest.startLsn,
    startedAt: oldest.startedAt,
    latestAt: latestCommit(tail.newestCommit, parseTime(newest.stoppedAt) ?? 0n),
    latestLsn: formatLsn(tail.end),
  }
}

/** The end of a recovery window that reaches at least to this time. */
export function latestCommit(newestCommit: Micros | undefined, atLeast: Micros): Micros {
  const settled = (newestCommit ?? 0n) - settleMicros
  return settled > atLeast ? settled : atLeast
}
