import type { PoolerSpec } from '../../../model/postgres/spec.ts'
import type { ServiceProcess } from '../driver.ts'

export interface PoolerAddress {
  listen: string
  port: number
}

/** All sessions of a user, or all sessions in a database. */
export type PooledSessions = { user: string } | { database: string }

export interface PoolerDriver {
  /** Starts the pooler or applies a changed spec to it. It uses the certificate of the cluster. */
  ensurePooler(id: string, spec: PoolerSpec): Promise<void>
  inspectPooler(id: string): Promise<ServiceProcess>
  /** Closes the matching client connections at once, without an error message to the clients. */
  endSessions(id: string, address: PoolerAddress, sessions: PooledSessions): Promise<void>
  removePooler(id: string): Promise<void>
}
