import type { PostgresMajor } from './cluster.ts'

/** Where the PostgreSQL of a new cluster comes from unless the operator has configured one. */
export const postgresSources = ['bundled', 'distribution'] as const
export type PostgresSource = (typeof postgresSources)[number]

/** An installation of PostgreSQL. A cluster keeps using the one it was created with until it is upgraded. */
export interface Toolchain {
  major: PostgresMajor
  /** The full version, such as `17.5`. */
  version: string
  source: 'configured' | 'distribution' | 'npm'
  /** The directory of the server programs. */
  bin: string
  /** The directory of extensions and other shared files. */
  share: string
  /** The directory of the client programs (psql, pg_dump, pg_basebackup …). It exists only after `ensureTools`. */
  tools: string
}
