// Administration of the users, databases and extensions of a cluster. Every method takes the id of the cluster first.
import type { UserRole } from '../../../model/postgres/user.ts'

export type Row = Record<string, unknown>

/** Several statements may be sent at once if there are no values; they then run in one transaction. */
export type Query = <R extends Row = Row>(
  id: string,
  database: string,
  text: string,
  values?: unknown[],
) => Promise<R[]>

export interface SqlClient {
  /** Runs statements as superuser, through the platform's Unix socket. */
  query: Query
  /** Closes the idle connections to one database of a cluster, or to all of them. */
  closeConnections(id: string, database?: string): Promise<void>
}

export interface ProbeTarget {
  host: string
  port: number
  user: string
  password: string
  database: string
  timeoutSeconds?: number
  /** The CA certificate to verify the server with; without it the connection is not encrypted. */
  ca?: string
}

export interface User {
  name: string
  role: UserRole
}

export interface UserAdmin {
  list(id: string): Promise<User[]>
  find(id: string, name: string): Promise<User | undefined>
  /** Throws `conflict` if the name is taken and `invalid` if PostgreSQL does not allow it. */
  create(id: string, user: User & { password: string }): Promise<void>
  /** Ends the sessions of the user, because some rights of a session are decided when it starts. */
  setRole(id: string, user: User): Promise<void>
  setPassword(id: string, name: string, password: string, options?: { killSessions?: boolean }): Promise<void>
  /** True if this is the password that the cluster currently accepts. */
  hasPassword(id: string, name: string, password: string): Promise<boolean>
  /** Ends the sessions of the user and gives what it owns to the admins. */
  drop(id: string, name: string): Promise<void>
  /** Removes the password of every login role that the platform does not manage. */
  clearUnmanagedPasswords(id: string): Promise<void>
}

export interface DatabaseAdmin {
  list(id: string): Promise<string[]>
  /** The databases that allow connections. */
  listOpen(id: string): Promise<string[]>
  /** Copies the template database. Throws `conflict` if the name is taken. */
  create(id: string, name: string): Promise<void>
  /** Ends every session in the database, including those of the pooler. */
  drop(id: string, name: string): Promise<void>
}

export interface DatabaseExtension {
  name: string
  description: string | null
  defaultVersion: string
  /** Part of every database; it cannot be dropped. */
  system: boolean
  installed: { version: string; schema: string } | null
}

export interface EnableOptions {
  schema?: string | undefined
  /** Creates the schema if it does not exist. */
  createSchema?: boolean | undefined
}

export interface ExtensionAdmin {
  list(id: string, database: string): Promise<DatabaseExtension[]>
  /** Installs required extensions too. Throws `conflict` if installed already and `not_found` if unknown. */
  enable(id: string, database: string, name: string, options?: EnableOptions): Promise<void>
  /** Installs an extension into `public`, for a database that no tenant has used yet. Can be repeated. */
  enableInNew(id: string, database: string, name: string): Promise<void>
  /** Throws `conflict` while other objects depend on the extension, unless `cascade` drops them too. */
  disable(id: string, database: string, name: string, options?: { cascade?: boolean }): Promise<void>
}

export interface SqlAdmin {
  users: UserAdmin
  databases: DatabaseAdmin
  extensions: ExtensionAdmin
  /** Rolls back every prepared transaction. */
  rollBackPrepared(id: string): Promise<void>
  /** Upgrades a cluster or backup that predates the trigger which grants access to new objects. */
  ensureGrants(id: string): Promise<void>
}
