import type { CheckpointDriver } from '../drivers/box/checkpoint/checkpoint.ts'
import type { BoxDriver } from '../drivers/box/driver.ts'
import type { BoxServices } from '../drivers/box/service/service.ts'
import type { ImageStore } from '../drivers/image/store.ts'
import type { MachineDriver } from '../drivers/machine/driver.ts'
import type { BackupDriver } from '../drivers/postgres/backup/driver.ts'
import type { DrillDriver } from '../drivers/postgres/drill/driver.ts'
import type { Hosting, PostgresDriver } from '../drivers/postgres/driver.ts'
import type { PoolerDriver } from '../drivers/postgres/pooler/driver.ts'
import type { ReceiverDriver } from '../drivers/postgres/receiver/driver.ts'
import type { RestoreDriver } from '../drivers/postgres/restore/driver.ts'
import type { Repository } from '../drivers/repository/driver.ts'
import type { VolumeDriver } from '../drivers/volume/driver.ts'
import type { Outcome, WorkingState } from '../model/states.ts'
import type { Db, Tx } from '../store/db.ts'

/** What a step works with. No transaction is open while it runs. */
export interface World {
  db: Db
  encryptionKey: Buffer
  hosting: Hosting
  postgres: PostgresDriver
  pooler: PoolerDriver
  repository: Repository
  receiver: ReceiverDriver
  backups: BackupDriver
  restores: RestoreDriver
  drills: DrillDriver
  boxes: BoxDriver
  services: BoxServices
  checkpoints: CheckpointDriver
  machines: MachineDriver
  images: ImageStore
  /** Whether machines of one network can reach each other here, and nothing else. */
  hasPrivateNetworks(): Promise<boolean>
  /** Addresses follow from it. */
  homeNumber: number
  volumes: VolumeDriver
  /** A certificate for a host name, by the platform's own authority. */
  makeCertificate(hostname: string): Promise<{ fullchain: string; privateKey: string }>
  keep: Keep
}

/** How long things are kept and how often they are done. */
export interface Keep {
  backupIntervalSeconds: number
  scrubIntervalSeconds: number
  /** Null for none by themselves. */
  drillIntervalSeconds: number | null
  pitrDays: number
  deletedDays: number
}

/** What a step reports: an outcome from its row of the state table, or "not yet, and why". */
export type StepResult<O extends string = string> =
  | { outcome: O; note: string; save?: (tx: Tx) => Promise<void> }
  | { wait: number; note: string; save?: (tx: Tx) => Promise<void> }

/** One step per working state, no more and no fewer: a missing one does not compile. */
export type Steps<T, Row> = {
  [S in WorkingState<T>]: (row: Row, world: World) => Promise<StepResult<Outcome<T, S>>>
}

export function advance<O extends string>(outcome: O, note = '', save?: (tx: Tx) => Promise<void>) {
  return save ? { outcome, note, save } : { outcome, note }
}

export function wait(seconds: number, note: string, save?: (tx: Tx) => Promise<void>) {
  return save ? { wait: seconds, note, save } : { wait: seconds, note }
}
