import type { Toolchain } from '../../../model/postgres/toolchain.ts'
import type { BackupDescription, SealedFiles } from '../../repository/driver.ts'

export interface BackupSpec {
  toolchain: Toolchain
  /** The Unix user of the server, from which that of the backup is derived. */
  uid?: number | undefined
  port: number
  /** Kilobytes per second, from 32 to 1048576. */
  maxRateKb?: number | undefined
  cgroup?: string[] | undefined
}

export interface BackupFacts {
  timeline: number
  startLsn: string
  stopLsn: string
  startedAt: string
  stoppedAt: string
  sizeBytes: number
}

export type BackupState =
  | { is: 'absent' }
  | { is: 'running'; bytesDone: number; bytesTotal: number; bytesVerified?: number }
  | { is: 'failed'; reason: string }
  | ({ is: 'done' } & BackupFacts)

export type ScrubState =
  | { is: 'absent' }
  | { is: 'running' }
  | { is: 'passed' }
  /** The job was killed before it had a result. */
  | { is: 'interrupted' }
  | { is: 'failed'; reason: string }

export type LogScrubState =
  | { is: 'absent' }
  | { is: 'running' }
  | { is: 'interrupted' }
  /** The file is the last one that was compared, or the first one that is damaged. */
  | { is: 'passed'; file: string }
  | { is: 'failed'; file: string; kind: 'missing' | 'damaged'; reason: string }

export interface BackupDriver {
  /** Runs one backup per cluster at a time: an unfinished one with another label is discarded. */
  startBackup(id: string, label: string, spec: BackupSpec): Promise<void>
  /** `done` means copied, durable and verified. The caller must check that the archive reaches its end. */
  inspectBackup(id: string, label: string): Promise<BackupState>
  finishBackup(description: BackupDescription): Promise<void>
  /** Removes an unfinished backup. */
  abandonBackup(id: string, label: string): Promise<void>
  /** Reads a kept backup from disk and verifies its checksums. Does nothing if the cluster has a scrub job already. */
  startScrub(id: string, label: string, toolchain: Toolchain): Promise<void>
  inspectScrub(id: string): Promise<ScrubState>
  /** Reads archived WAL from disk and compares its digests. A cluster has one scrub job, of a backup or of WAL. */
  startLogScrub(id: string, archive: SealedFiles): Promise<void>
  inspectLogScrub(id: string): Promise<LogScrubState>
  removeScrub(id: string): Promise<void>
}
