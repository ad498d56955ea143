import type { WalHole } from '../../../model/postgres/damage.ts'
import type { RestorePlan } from '../../../model/postgres/restore.ts'
import type { DataSpec } from '../../../model/postgres/spec.ts'

/** The plan ends at the end of its last piece, on the timeline of the source. The toolchain is the one of the source. */
export interface RestoreSpec extends DataSpec, RestorePlan {
  /** True if a recent scrub has verified the checksums of the backup on disk. */
  trusted?: boolean | undefined
}

/** `damage` is set if the backup itself is damaged, and `hole` if the archived WAL is. */
export type RestoreFailure = {
  is: 'failed'
  reason: string
  damage?: string | undefined
  hole?: WalHole | undefined
}

export type CopyState =
  | { is: 'absent' }
  | { is: 'running'; bytesDone: number; bytesTotal: number; bytesVerified: number }
  | RestoreFailure
  | { is: 'done' }

export type RecoveryState =
  /** `problem` says why the server is not running. */
  | { is: 'replaying'; replayedUntil: string | null; replayedLsn: string | null; problem?: string | undefined }
  | RestoreFailure
  | { is: 'promoted'; endLsn: string; timeline: number; replayedUntil: string | null }

export type VerificationState = { is: 'running' } | { is: 'passed' } | RestoreFailure

export interface RestoreDriver {
  /**
   * Copies the backup into a new data directory; repeats a copy that was interrupted. Does nothing if the data directory
   * exists or the copy runs or has failed. The backup is verified first, unless it is trusted and the copy is a reflink.
   */
  startCopy(id: string, spec: RestoreSpec): Promise<void>
  /** Verifies a backup that was trusted by the copy. Does nothing if that is done, runs or has found damage. */
  startVerification(id: string, spec: RestoreSpec): Promise<void>
  /** Waits up to `timeoutSeconds` for the copy before it measures the progress, which starts several processes. */
  inspectCopy(id: string, timeoutSeconds?: number): Promise<CopyState>
  /** Tells whether the checksums of the copied backup have been verified. */
  inspectVerification(id: string): Promise<VerificationState>
  /** Reads the progress of the recovery after the server was started. */
  inspectRecovery(id: string, spec: RestoreSpec): Promise<RecoveryState>
  /**
   * Removes the recovery settings; throws if replay did not reach the end of the plan. Returns the number of copied bytes, or
   * undefined in a repeated call.
   */
  finish(id: string, spec: RestoreSpec): Promise<number | undefined>
  /** Ends a copy and removes its remains, but not the data directory. */
  remove(id: string): Promise<void>
}
