import type { DataSpec } from '../../../model/postgres/spec.ts'
import type { Toolchain } from '../../../model/postgres/toolchain.ts'
import type { UpgradeStage } from '../../../model/postgres/upgrade.ts'

/** The toolchain is the one that the data directory belongs to before the upgrade. */
export interface UpgradeSpec extends DataSpec {
  target: Toolchain
  /** The `cgroup.procs` files that the processes join. */
  cgroup?: string[] | undefined
}

export type UpgradeJobState =
  | { is: 'absent' }
  | { is: 'running'; stage: UpgradeStage }
  | { is: 'failed'; reason: string }
  /** The data directory is of the new version. */
  | { is: 'done' }

export interface UpgradeDriver {
  /**
   * Starts pg_upgrade and the checks after it on the data directory of a stopped server; repeats a job that was
   * interrupted. Does nothing if the directory is of the new version or the job runs or has failed.
   */
  startUpgrade(id: string, spec: UpgradeSpec): Promise<void>
  inspectUpgrade(id: string, spec: UpgradeSpec): Promise<UpgradeJobState>
  /** Ends the job. Its directory remains, for inspection. */
  stopUpgrade(id: string): Promise<void>
  /** Ends the job and removes its directory, but not the data directory. */
  removeUpgrade(id: string): Promise<void>
}
