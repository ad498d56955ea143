// The store of backups and archived WAL. Callers refer to clusters, labels and epochs; only an implementation of this
// interface knows the files.
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
  /** Plan, disk size, region and other settings needed to recreate the cluster. */
  settings: Record<string, unknown>
}

/** Choices of the owner of a cluster that its backups do not contain. */
export interface ClusterDescription {
  drillQuery: string | null
  /** Absent in descriptions of earlier versions. */
  retentionDays?: number | null
  /** The labels of backups that retention does not remove. */
  pinned: string[]
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
   * is no complete record. For an archive without a running receiver.
   */
  archiveTail(clusterId: string, epoch: number, timeline: number, from: Lsn): Promise<WalTail | undefined>
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
  listBackups(clusterId: string): Promise<BackupDescription[]>
  removeBackup(clusterId: string, label: string): Promise<void>
  /** The path of the files of the cluster in a committed backup. They must not be changed. */
  backupData(clusterId: string, label: string): string

  /**
   * Lists the WAL files to replay for these pieces, starting with the segment of `from`. A piece on a new timeline starts
   * where the timeline history says that it branched off. Throws an error that names the first file that is missing,
   * truncated or from another cluster.
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
}
