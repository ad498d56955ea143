// The store of backups and archived WAL. Callers refer to clusters, labels and epochs; only an implementation of this
// interface knows the files.
import type { LogDamage } from '../../model/postgres/log-damage.ts'
import type { Lsn, WalPiece } from '../../model/postgres/wal.ts'
import type { Micros } from '../../model/time.ts'

/** Metadata stored with a backup, from which the state database can be rebuilt. */
export interface BackupDescription {
  clusterId: string
  clusterName: string
  orgSlug: string
  label: string
  epoch: number
  pgMajor: string
  timeline: number
  startLsn: string
  stopLsn: string
  startedAt: string
  /** The time at the source when the backup ended: the earliest time it can be restored to. */
  stoppedAt: string
  sizeBytes: number
  /** The SHA-256 digest of its manifest. Backups of older versions have none. */
  manifestChecksum?: string | undefined
  /** Plan, disk size, region and other settings needed to recreate the cluster. */
  settings: Record<string, unknown>
}

/** What a restored cluster depends on until its first own backup: the backup and WAL of its source. */
export interface DescribedBase {
  backup: { clusterId: string; label: string; startLsn: string; stopLsn: string }
  pieces: WalPiece[]
  /** The first restorable time: when the cluster was separated from its source. */
  at: string
}

export interface DescribedEpoch {
  epoch: number
  timeline: number
  startLsn: string
  startedAt: string
  base: DescribedBase | null
  /** Whether the clock of the cluster was changed: then the timestamps in the WAL do not tell its order. */
  isClockChanged?: boolean | undefined
}

/** What its backups do not say about a cluster. Older versions wrote only the first two fields. */
export interface ClusterDescription {
  drillQuery: string | null
  /** Absent in descriptions of earlier versions. */
  retentionDays?: number | null
  maintenanceWindow?: string | null
  /** The labels of backups that retention does not remove. */
  pinned: string[]
  clusterId?: string | undefined
  clusterName?: string | undefined
  orgSlug?: string | undefined
  pgMajor?: string | undefined
  createdAt?: string | undefined
  settings?: Record<string, unknown> | undefined
  epochs?: DescribedEpoch[] | undefined
  /** The restore that created the cluster. */
  origin?: Record<string, unknown> | undefined
}

export interface WalFile {
  name: string
  bytes: number
}

export interface WalRange {
  from: Lsn
  to: Lsn
}

export interface WalTail {
  /** The end of the last complete record. */
  end: Lsn
  /** The newest timestamp of a transaction near the end. */
  newestCommit: Micros | undefined
  /** Set if the log does not contain everything that was recorded of it. */
  damage?: LogDamage | undefined
}

/** A position that the receiver of an archive has acknowledged. */
export interface AcknowledgedEnd {
  timeline: number
  lsn: Lsn
  /** The clock of the source at that moment. */
  at: Micros
  /** True if the source had written it, but the archive lacks it. */
  isMissing?: boolean | undefined
}

/** A record that was stamped noticeably earlier than one before it, and the newest stamp before it. */
export interface StepBack {
  lsn: Lsn
  newest: Micros
}

export interface SealedFiles {
  /** The path of the archive. */
  directory: string
  files: { name: string; sha256: string }[]
}

export interface Sealing {
  /** The number of files that are done now. */
  count: number
  /** Those that are damaged. They are reported again by a new process. */
  damaged: WalFileError[]
}

/** A file of the archive that a replay needs is missing or cannot be used. */
export class WalFileError extends Error {
  override readonly name = 'WalFileError'
  readonly file: string
  readonly kind: 'missing' | 'damaged'

  constructor(kind: 'missing' | 'damaged', file: string, message: string, cause?: unknown) {
    super(message, { cause })
    this.file = file
    this.kind = kind
  }
}

/** An archive cannot be used, and trying again changes nothing. Which part of the log is lost is not known. */
export class UnusableArchiveError extends Error {
  override readonly name = 'UnusableArchiveError'
}

export interface Repository {
  /** Creates the directory that the receiver of this epoch writes to, owned by its user; returns the path. */
  ensureArchive(clusterId: string, epoch: number, owner?: number): Promise<string>
  listArchive(clusterId: string, epoch: number): Promise<WalFile[]>
  /**
   * The end of the last segment in the gapless sequence that starts with the segment of `from` on this timeline; undefined
   * if that segment is missing. A segment that the receiver still writes to counts as complete: only the source knows
   * which position in it the receiver has flushed.
   */
  archiveEnd(clusterId: string, epoch: number, timeline: number, from: Lsn): Promise<Lsn | undefined>
  /**
   * The actual end of the WAL in that sequence, read from its records, and the newest commit near it; undefined if there
   * is no complete record. Compares it with the recorded end. With `before`, records that end later are not considered.
   * For an archive without a running receiver. Throws a `WalFileError` for an unreadable segment.
   */
  archiveTail(clusterId: string, epoch: number, timeline: number, from: Lsn, before?: Lsn): Promise<WalTail | undefined>
  /** The first missing or truncated segments in the range, up to the next one that is there. */
  findHole(clusterId: string, epoch: number, timeline: number, range: WalRange): Promise<WalRange | undefined>
  /**
   * The position that a time has in an archive: the end of the last commit in the range that was stamped at or before
   * it, or the start of the range. Throws a `WalFileError` if the log is damaged or missing in the range.
   */
  findCut(clusterId: string, epoch: number, timeline: number, time: Micros, range: WalRange): Promise<Lsn>
  /** The first sign in the range that the clock was set back. */
  findStepBack(clusterId: string, epoch: number, timeline: number, range: WalRange): Promise<StepBack | undefined>
  /** Records that the receiver has acknowledged everything up to this position. It never moves back. */
  recordEnd(clusterId: string, epoch: number, end: AcknowledgedEnd): Promise<void>
  /** Undefined if it was never recorded. Throws if the record is damaged. */
  findRecordedEnd(clusterId: string, epoch: number): Promise<AcknowledgedEnd | undefined>
  /**
   * Records the digests of the complete segments before this position, a few per call. Restores and scrubs compare them.
   * Segments that were completed while nobody watched are verified first; damaged ones are recorded as such.
   */
  sealSegments(clusterId: string, epoch: number, timeline: number, before: Lsn): Promise<Sealing>
  /** The first segments of the range that have a digest, and the history that they need. */
  listSealed(clusterId: string, epoch: number, timeline: number, range: WalRange, limit: number): Promise<SealedFiles>
  /** Whether all files that a hole consists of are there and have their recorded digests. */
  isIntact(clusterId: string, epoch: number, hole: WalRange & { timeline: number }): Promise<boolean>
  /** The start of the first segment from this position on that differs from its recorded digest. */
  findAlteredSegment(clusterId: string, epoch: number, timeline: number, from: Lsn): Promise<Lsn | undefined>
  /** Removes the segments that end before this position, oldest first, except those in `kept`; returns their number. */
  removeWalBefore(clusterId: string, epoch: number, before: Lsn, kept?: WalRange[]): Promise<number>
  removeArchive(clusterId: string, epoch: number): Promise<void>

  /** Creates an empty directory to make a backup in, owned by this user; removes the remains of an interrupted attempt. */
  stageBackup(clusterId: string, label: string, owner?: number): Promise<string>
  /** The labels of staged backups. */
  listStaged(clusterId: string): Promise<string[]>
  /**
   * The directory that a staged backup is made in, which may not exist. It contains the files of the cluster in `data`. Its
   * owner copies what a tenant's server sends, so it must be read with care.
   */
  stagedBackup(clusterId: string, label: string): string
  /** Publishes a staged backup with its description atomically. Can be repeated. */
  commitBackup(description: BackupDescription): Promise<void>
  discardStaged(clusterId: string, label: string): Promise<void>
  findBackup(clusterId: string, label: string): Promise<BackupDescription | undefined>
  /** The backups whose descriptions are valid, oldest first. */
  listBackups(clusterId: string): Promise<BackupDescription[]>
  /** What is wrong with the other ones: a sentence for each. */
  listUnusableBackups(clusterId: string): Promise<string[]>
  removeBackup(clusterId: string, label: string): Promise<void>
  /**
   * Says why a backup is not the one that was committed here: it was exchanged or changed. It does not read the files of
   * the cluster, which its manifest describes.
   */
  findForeignBackup(clusterId: string, label: string): Promise<string | undefined>
  /** The path of the files of the cluster in a committed backup. They must not be changed. */
  backupData(clusterId: string, label: string): string
  /**
   * Why the files of a committed backup cannot be found; undefined if their directory exists. Throws if the repository
   * has no backups of the cluster at all, as when it is not mounted.
   */
  findMissingBackup(clusterId: string, label: string): Promise<string | undefined>

  /**
   * Lists the WAL files to replay for these pieces, starting with the segment of `from`. A piece on a new timeline starts
   * where the timeline history says that it branched off. Throws a `WalFileError` for the first file that is missing,
   * truncated, unreadable or from another cluster.
   */
  planWal(pieces: WalPiece[], from: Lsn): Promise<PlannedWal[]>

  /** Replaces the description of a cluster atomically. */
  describeCluster(clusterId: string, description: ClusterDescription): Promise<void>
  findDescription(clusterId: string): Promise<ClusterDescription | undefined>
  listClusters(): Promise<string[]>
  removeCluster(clusterId: string): Promise<void>
  freeBytes(): Promise<number>

  /** Stores a file of the platform itself atomically, readable only by its owner. */
  putPlatformFile(name: string, sourcePath: string): Promise<void>
  /** Sorted by name. */
  listPlatformFiles(): Promise<string[]>
  removePlatformFile(name: string): Promise<void>
}

export interface PlannedWal {
  /** The receiver removes a `.partial` suffix when it completes the segment. */
  path: string
  /** The name in pg_wal. */
  name: string
  /** The number of bytes to copy; the rest of a segment is filled with zeros. */
  bytes: number
  /** The recorded digest of the first bytes of the file, if it has one. */
  seal?: { bytes: number; sha256: string } | undefined
}
