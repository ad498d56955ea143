// What of an archive can be restored, told from the archive alone.
import type { BackupDescription, Repository } from '../../drivers/repository/driver.ts'
import { newId } from '../../model/ids.ts'
import { formatLsn, parseLsn } from '../../model/postgres/wal.ts'
import type { Micros } from '../../model/time.ts'
import { parseTime } from '../../model/time.ts'
import type { AdoptedBackup, AdoptedEpoch } from '../../store/postgres/adopt.ts'

/** Commits are not stamped in the order of the log; the inversions are far below this. */
const settleMicros = 1_000_000n

export interface ReadEpoch {
  backups: AdoptedBackup[]
  /** Undefined when none of its backups has the log it needs. */
  epoch: AdoptedEpoch | undefined
}

type Archives = Pick<Repository, 'archiveEnd' | 'archiveTail'>
type Tail = NonNullable<Awaited<ReturnType<Archives['archiveTail']>>>

/**
 * The newest unbroken stretch counts. A backup before a hole in it is kept as a damaged one: its window would promise
 * moments that nobody has. One that is pinned may have lost the log behind it when the window passed it, and stands alone.
 */
export async function readEpoch(
  repository: Archives,
  descriptions: BackupDescription[],
  pinned: Set<string>,
): Promise<ReadEpoch> {
  const backups: AdoptedBackup[] = []
  const sound: BackupDescription[] = []
  let tail: Tail | undefined
  let end: bigint | undefined
  for (const description of descriptions.toReversed()) {
    const { clusterId, epoch, timeline, startLsn } = description
    const reached = await repository.archiveEnd(clusterId, epoch, timeline, parseLsn(startLsn))
    const found = tail ?? (await tailFrom(repository, description))
    const isSound = hasEndOf(description, found) && (!tail || reached === end)
    const isPinned = pinned.has(description.label)
    const isAlone = !isSound && isPinned && hasEndOf(description, await tailFrom(repository, description))
    if (isSound) {
      tail = found
      end = reached
      sound.push(description)
    }
    const damage = isSound || isAlone ? null : 'the write-ahead log it needs is not whole'
    backups.push({ ...backupOf(description), damage, pinned: isPinned, alone: isAlone })
  }
  return { backups, epoch: tail && epochOf(sound, tail) }
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

/** Newest first. The edge is where the samples of the source would have put it, or a little before. */
function epochOf(backups: BackupDescription[], tail: Tail): AdoptedEpoch {
  const newest = backups[0]!
  const oldest = backups.at(-1)!
  return {
    epoch: newest.epoch,
    timeline: newest.timeline,
    startLsn: oldest.startLsn,
    startedAt: oldest.startedAt,
    latestAt: newestOf(parseTime(newest.stoppedAt) ?? 0n, (tail.newestCommit ?? 0n) - settleMicros),
    latestLsn: formatLsn(tail.end),
  }
}

function newestOf(a: Micros, b: Micros): Micros {
  return a > b ? a : b
}
