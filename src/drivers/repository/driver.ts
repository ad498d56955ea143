// Where backups and the write-ahead log are kept. Everything else speaks of clusters, labels and epochs; only an
// implementation of this interface knows where they lie.
import type { Lsn, WalPiece } from '../../model/postgres/wal.ts'
import type { LogTail } from './wal-tail.ts'

/** What a backup says of itself, so that the catalogue can be rebuilt from the repository alone. */
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
  /** The clock of the source right after the backup ended: the earliest time it can be restored to. */
  stoppedAt: string
  sizeBytes: number
  /** Plan, disk, region and the like, enough to make the cluster again. */
  settings: Record<string, unknown>
}

/** What the owner of a cluster wishes for it and could not be told from its backups. */
export interface ClusterDescription {
  drillQuery: string | null
  /** The labels of backups that are kept for good. */
  pinned: string[]
}

export interface WalFile {
  name: string
  bytes: number
}

export interface WalStretch {
  from: Lsn
  to: Lsn
}

export interface Repository {
  /** The directory into which the receiver of this epoch writes. Made if absent, owned by the platform. */
  ensureArchive(clusterId: string, epoch: number): Promise<string>
  listArchive(clusterId: string, epoch: number): Promise<WalFile[]>
  /**
   * The end of the last segment in an unbroken row from the one that holds `from`, on this timeline; undefined when
   * that one is missing. A segment that the receiver still writes to counts whole: how much of it is there only the
   * source knows, as the place that the receiver has flushed.
   */
  archiveEnd(clusterId: string, epoch: number, timeline: number, from: Lsn): Promise<Lsn | undefined>
  /**
   * Where the log in that row really ends, read from its records, and the newest commit near there. For an archive that
   * nobody writes to any more; undefined when there is no whole record.
   */
  archiveTail(clusterId: string, epoch: number, timeline: number, from: Lsn): Promise<LogTail | undefined>
  /** Removes the segments that end before this place, oldest first, but for those kept; answers with how many. */
  removeWalBefore(clusterId: string, epoch: number, before: Lsn, kept?: WalStretch[]): Promise<number>
  removeArchive(clusterId: string, epoch: number): Promise<void>

  /** A directory to make a backup in. What an interrupted attempt left there is gone. */
  stageBackup(clusterId: string, label: string): Promise<string>
  /** The labels of what is staged. */
  listStaged(clusterId: string): Promise<string[]>
  /** Where a backup is staged, whether or not it is: a directory with the files of the cluster in `data`. */
  stagedBackup(clusterId: string, label: string): string
  /** The staged backup appears, whole and described, or not at all. Repeating is harmless. */
  commitBackup(description: BackupDescription): Promise<void>
  discardStaged(clusterId: string, label: string): Promise<void>
  findBackup(clusterId: string, label: string): Promise<BackupDescription | undefined>
  listBackups(clusterId: string): Promise<BackupDescription[]>
  removeBackup(clusterId: string, label: string): Promise<void>
  /** The files of the cluster in a kept backup, to be read only. */
  backupData(clusterId: string, label: string): string

  /**
   * The files to replay for these pieces, from the segment that holds `from`: where each lies, its name in pg_wal, and
   * how many of its bytes count. Each piece goes on where the history of its timeline says it left the one before.
   * Throws naming the first file that is missing, short or foreign.
   */
  planWal(pieces: WalPiece[], from: Lsn): Promise<PlannedWal[]>

  /** In place of what was said before, at once. */
  describeCluster(clusterId: string, description: ClusterDescription): Promise<void>
  findDescription(clusterId: string): Promise<ClusterDescription | undefined>
  listClusters(): Promise<string[]>
  removeCluster(clusterId: string): Promise<void>
  freeBytes(): Promise<number>

  /** What the platform keeps of itself. The file appears whole or not at all, readable by its owner only. */
  putPlatformFile(name: string, sourcePath: string): Promise<void>
  /** By name. */
  listPlatformFiles(): Promise<string[]>
  removePlatformFile(name: string): Promise<void>
}

export interface PlannedWal {
  /** One that ends with `.partial` loses this ending when the receiver finishes the segment. */
  path: string
  name: string
  /** Bytes that are copied; the rest of a segment is zeros. */
  bytes: number
}
