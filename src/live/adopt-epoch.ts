// What of an archive can be restored, told from the archive alone.
import type { BackupDescription, Repository } from '../drivers/repository.ts'
import { newId } from '../model/ids.ts'
import { parseTime } from '../model/restore.ts'
import type { Micros } from '../model/time.ts'
import { formatLsn, parseLsn } from '../model/wal.ts'
import type { AdoptedBackup, AdoptedEpoch } from '../store/adopt.ts'

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
 * moments that nobody has.
 */
export async function readEpoch(repository: Archives, descriptions: BackupDescription[]): Promise<ReadEpoch> {
  const backups: AdoptedBackup[] = []
  const sound: BackupDescription[] = []
  let tail: Tail | undefined
  let end: bigint | undefined
  for (const description of descriptions.toReversed()) {
    const { clusterId, epoch, timeline } = description
    const from = parseLsn(description.startLsn)
    const reached = await repository.archiveEnd(clusterId, epoch, timeline, from)
    const found = tail ?? (await repository.archiveTail(clusterId, epoch, timeline, from))
    const isSound = found !== undefined && found.end >= parseLsn(description.stopLsn) && (!tail || reached === end)
    if (isSound) {
      tail = found
      end = reached
      sound.push(description)
    }
    backups.push(backupOf(description, isSound ? null : 'the write-ahead log it needs is not whole'))
  }
  return { backups, epoch: tail && epochOf(sound, tail) }
}

function backupOf(description: BackupDescription, damage: string | null): AdoptedBackup {
  const { label, epoch, timeline, startLsn, stopLsn, startedAt, stoppedAt, sizeBytes } = description
  return { id: newId(), label, epoch, timeline, startLsn, stopLsn, startedAt, stoppedAt, sizeBytes, damage }
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
