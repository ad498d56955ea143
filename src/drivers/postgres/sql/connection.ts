import pg from 'pg'
import { notFound, unavailable } from '../../../model/errors.ts'
import { findNameProblem } from '../../../model/postgres/name.ts'
import type { ClusterSpec } from '../../../model/postgres/spec.ts'
import { ensureFile } from '../../host/atomic-file.ts'
import { readTextIfPresent } from '../../host/file.ts'
import type { Home } from '../../host/home.ts'
import { type ClusterPaths, clusterPaths } from '../paths.ts'
import type { ProbeTarget, Query, Row } from './driver.ts'
import { explainError } from './error.ts'
import { superuser } from './platform-role.ts'

export interface Connections {
  query: Query
  watch: Query
  /** Closes the connections to one database or to all databases of a cluster. */
  close(id: string, database?: string): Promise<void>
}

const timeoutMs = 10_000
const connectTimeoutMs = 5_000
// Shorter than the statement timeout, so that the error of a blocked statement mentions the lock.
const lockTimeoutMs = 5_000

/**
 * A backend takes some megabytes, and more with every catalog it has read. So connections for arbitrary queries are
 * closed soon, and the one that stays open runs a single query only.
 */
const poolOptions = {
  query: { idleTimeoutMillis: 500, max: 2 },
  watch: { idleTimeoutMillis: 3_000, max: 1 },
}
type PoolKind = keyof typeof poolOptions

/**
 * Settings that tenants can attach to a database apply to the platform's sessions too, which are superuser sessions: with
 * a foreign search path, our statements would call functions of the tenant. Options of the client override them. A test
 * attaches every setting that a tenant may change; those it lists as harmless are not repeated here.
 */
const ownSettings: Record<string, string> = {
  search_path: '',
  role: 'none',
  default_transaction_read_only: 'off',
  default_transaction_isolation: 'read\\ committed',
  default_transaction_deferrable: 'off',
  idle_session_timeout: '0',
  idle_in_transaction_session_timeout: '0',
  exit_on_error: 'off',
  // A missing library would make every connection fail.
  local_preload_libraries: '',
  session_preload_libraries: '',
  session_replication_role: 'origin',
  // A policy of a tenant that would apply is an error instead.
  row_security: 'off',
  // How statements and scripts of extensions are parsed, and where their tables are stored.
  standard_conforming_strings: 'on',
  backslash_quote: 'safe_encoding',
  array_nulls: 'on',
  transform_null_equals: 'off',
  check_function_bodies: 'on',
  'plpgsql.extra_errors': 'none',
  default_table_access_method: 'heap',
  default_tablespace: '',
  temp_tablespaces: '',
  // How values are printed.
  client_encoding: 'UTF8',
  client_min_messages: 'warning',
  bytea_output: 'hex',
  DateStyle: 'ISO,MDY',
  IntervalStyle: 'postgres',
  TimeZone: 'UTC',
  extra_float_digits: '1',
  quote_all_identifiers: 'off',
  // Our statements contain password verifiers, and tenants can read statistics and logs.
  track_activities: 'off',
  'pg_stat_statements.track': 'none',
  log_min_error_statement: 'panic',
}

/** Settings that older major versions do not know. */
const newerSettings: Record<string, Record<string, string>> = {
  17: { transaction_timeout: '0', event_triggers: 'off' },
}

/** The `options` of a superuser session that no setting of a tenant can influence. */
export function sessionOptions(major: string, limits: { statementMs: number; lockMs: number }): string {
  const timeouts = { statement_timeout: String(limits.statementMs), lock_timeout: String(limits.lockMs) }
  return Object.entries({ ...ownSettings, ...newerSettings[major], ...timeouts })
    .map(([name, value]) => `-c ${name}=${value}`)
    .join(' ')
}

/** Opens connection pools through the platform's Unix socket on demand; idle connections are closed. */
export function openConnections(home: Home): Connections {
  const pools = new Map<string, pg.Pool>()

  function poolFor(kind: PoolKind, id: string, database: string): pg.Pool {
    // PostgreSQL takes an empty name for the user's, truncates a long one and reads options after a zero byte.
    if (findNameProblem(database)) throw notFound(`Database "${database}" does not exist`)
    const connection = readConnection(home, id)
    const key = `${id}/${connection.port}/${kind}/${database}`
    const known = pools.get(key)
    if (known) return known
    const pool = openPool(home, id, connection, database, kind)
    pool.on('remove', () => {
      if (pool.totalCount > 0 || pool.waitingCount > 0 || pools.get(key) !== pool) return
      pools.delete(key)
      void pool.end()
    })
    pools.set(key, pool)
    return pool
  }

  function queryOn(kind: PoolKind): Query {
    return async <R extends Row>(id: string, database: string, text: string, values?: unknown[]): Promise<R[]> => {
      try {
        const result: pg.QueryResult<R> | pg.QueryResult<R>[] = await poolFor(kind, id, database).query(text, values)
        return (Array.isArray(result) ? result.at(-1) : result)?.rows ?? []
      } catch (error) {
        throw explainError(error, `query database ${database} of cluster ${id}`)
      }
    }
  }

  return {
    query: queryOn('query'),
    watch: queryOn('watch'),
    async close(id, database) {
      const closing = [...pools].filter(([key]) => {
        const [owner, , , ...name] = key.split('/')
        return owner === id && (database === undefined || name.join('/') === database)
      })
      for (const [key] of closing) pools.delete(key)
      await Promise.all(closing.map(([, pool]) => pool.end()))
    },
  }
}

function openPool(home: Home, id: string, { major, port }: Connection, database: string, kind: PoolKind): pg.Pool {
  const pool = new pg.Pool({
    host: clusterPaths(home, id).sockets,
    port,
    user: superuser,
    database,
    options: sessionOptions(major, { statementMs: timeoutMs, lockMs: lockTimeoutMs }),
    application_name: 'berth',
    ...poolOptions[kind],
    connectionTimeoutMillis: connectTimeoutMs,
    // Longer than the statement timeout of the server, which leaves the connection usable.
    query_timeout: timeoutMs + 1000,
    allowExitOnIdle: true,
  })
  // Emitted when the server ends an idle connection, such as on a restart; the next query opens another one.
  pool.on('error', () => undefined)
  return pool
}

interface Connection {
  major: string
  /** Part of the name of the Unix socket. */
  port: number
}

/** Records how to connect. The files of the server itself say it too, but a tenant could change them. */
export function writeConnection(paths: ClusterPaths, { toolchain, port }: ClusterSpec): void {
  const connection: Connection = { major: toolchain.major, port }
  ensureFile(paths.connection, JSON.stringify(connection), { mode: 0o600 })
}

function readConnection(home: Home, id: string): Connection {
  const text = readTextIfPresent(clusterPaths(home, id).connection)
  if (text === undefined) throw unavailable('The cluster is not running')
  return JSON.parse(text)
}

/** Runs a query as any client would; throws if there is no answer in time. */
export async function probe(target: ProbeTarget): Promise<void> {
  await queryOnce(target, 'select 1')
}

/** Runs one query on a connection of its own. */
export async function queryOnce<R extends Row>(
  { timeoutSeconds = 5, ca, ...target }: ProbeTarget,
  text: string,
): Promise<R[]> {
  const client = new pg.Client({
    ...target,
    ...(ca !== undefined && { ssl: { ca, servername: target.host } }),
    application_name: 'berth-probe',
    connectionTimeoutMillis: timeoutSeconds * 1000,
    query_timeout: timeoutSeconds * 1000,
  })
  client.on('error', () => undefined)
  try {
    await client.connect()
    return (await client.query<R>(text)).rows
  } catch (cause) {
    throw new Error(`query ${target.host}:${target.port}`, { cause })
  } finally {
    // This is not awaited, because an unresponsive server does not close the connection either.
    void client.end().catch(() => undefined)
  }
}
