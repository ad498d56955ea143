import type { CheckpointDriver } from '../drivers/box/checkpoint/driver.ts'
import type { BoxDriver } from '../drivers/box/driver.ts'
import type { BoxServices } from '../drivers/box/service/driver.ts'
import type { ImageStore } from '../drivers/image/driver.ts'
import type { MachineDriver } from '../drivers/machine/driver.ts'
import type { BackupDriver } from '../drivers/postgres/backup/driver.ts'
import type { DrillDriver } from '../drivers/postgres/drill/driver.ts'
import type { Hosting, PostgresDriver } from '../drivers/postgres/driver.ts'
import type { ImportDriver } from '../drivers/postgres/import/driver.ts'
import type { PoolerDriver } from '../drivers/postgres/pooler/driver.ts'
import type { ReceiverDriver } from '../drivers/postgres/receiver/driver.ts'
import type { RestoreDriver } from '../drivers/postgres/restore/driver.ts'
import type { UpgradeDriver } from '../drivers/postgres/upgrade/driver.ts'
import type { Repository } from '../drivers/repository/driver.ts'
import type { VolumeDriver } from '../drivers/volume/driver.ts'
import type { Outcome, WorkingState } from '../model/states.ts'
import type { Db, Tx } from '../store/db.ts'
import type { Turns } from '../store/turn.ts'

/** The database and the drivers that steps use. No transaction is open while a step runs. */
export interface World {
  db: Db
  turns: Turns
  encryptionKey: Buffer
  hosting: Hosting
  postgres: PostgresDriver
  pooler: PoolerDriver
  repository: Repository
  receiver: ReceiverDriver
  backups: BackupDriver
  restores: RestoreDriver
  drills: DrillDriver
  imports: ImportDriver
  upgrades: UpgradeDriver
  boxes: BoxDriver
  services: BoxServices
  checkpoints: CheckpointDriver
  machines: MachineDriver
  images: ImageStore
  /** Whether this host supports private networks between machines. */
  hasPrivateNetworks(): Promise<boolean>
  /** Addresses of machines and sandboxes are derived from it. */
  homeNumber: number
  volumes: VolumeDriver
  /** Issues a certificate for a host name, signed by the platform's own authority. */
  makeCertificate(hostname: string): Promise<{ fullchain: string; privateKey: string }>
  keep: Keep
}

/** Retention periods and the intervals of recurring work. */
interface Keep {
  backupIntervalSeconds: number
  scrubIntervalSeconds: number
  /** Null when drills run only on request. */
  drillIntervalSeconds: number | null
  pitrDays: number
  deletedDays: number
}

/** Either an outcome from the state table, or the number of seconds to wait and why. */
export type StepResult<O extends string = string> =
  | { outcome: O; note: string; save?: (tx: Tx) => Promise<void> }
  | { wait: number; note: string; save?: (tx: Tx) => Promise<void> }

/** One step per working state; a missing or surplus one does not compile. */
export type Steps<T, Row> = {
  [S in WorkingState<T>]: (row: Row, world: World) => Promise<StepResult<Outcome<T, S>>>
}

export function advance<O extends string>(outcome: O, note = '', save?: (tx: Tx) => Promise<void>) {
  return save ? { outcome, note, save } : { outcome, note }
}

export function wait(seconds: number, note: string, save?: (tx: Tx) => Promise<void>) {
  return save ? { wait: seconds, note, save } : { wait: seconds, note }
}
