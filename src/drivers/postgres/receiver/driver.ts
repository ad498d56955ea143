import type { Toolchain } from '../../../model/postgres/toolchain.ts'
import type { Lsn } from '../../../model/postgres/wal.ts'
import type { ServiceProcess } from '../driver.ts'

export interface ReceiverSpec {
  /** Each epoch has its own directory in the archive and its own slot. */
  epoch: number
  slot: string
  toolchain: Toolchain
  /** The Unix user of the server, from which that of the receiver is derived. */
  uid?: number | undefined
  port: number
  cgroup?: string[] | undefined
}

export type SlotState =
  | { is: 'absent' }
  /** WAL that was not archived yet has been removed: the archive has a gap, and its epoch ends here. */
  | { is: 'lost' }
  | { is: 'ok'; active: boolean; restartLsn?: Lsn; flushLsn?: Lsn }

export interface ReceiverDriver {
  /** Creates a replication slot; from then on the cluster keeps its WAL until it is archived. */
  ensureSlot(id: string, slot: string): Promise<void>
  /** `flushLsn` is the end of the durably archived WAL; it is known while the receiver is connected. */
  inspectSlot(id: string, slot: string): Promise<SlotState>
  /** Disconnects the receiver of the slot if there is one. */
  dropSlot(id: string, slot: string): Promise<void>
  /** Starts the receiver; restarts it if the spec has changed. */
  ensureReceiver(id: string, spec: ReceiverSpec): Promise<void>
  inspectReceiver(id: string): Promise<ServiceProcess>
  removeReceiver(id: string): Promise<void>
}
