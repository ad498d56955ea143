// The configuration file of PgBouncer. What it may contain depends on the version: Debian 12 has 1.18, Debian 13 has 1.24.
import type { PoolerSpec } from '../../../model/postgres/spec.ts'
import type { ClusterPaths } from '../paths.ts'
import { poolerConnections } from '../settings.ts'
import { poolerUser, superuser } from '../sql/platform-role.ts'
import { userFile } from './console.ts'

// PgBouncer uses the reserve pool for clients that have waited this long.
const reserveSeconds = 3
// An idle server connection costs some megabytes, and opening another one some milliseconds. PostgreSQL waits five seconds
// for sessions to end before it refuses to drop or copy a database, so idle connections must be gone by then.
const serverIdleSeconds = 2
// After a refused login, such as on a full server. Meanwhile waiting clients get no server connection.
const loginRetrySeconds = 1
// Clients may ask for any name, and each one takes memory for this long.
const unusedDatabaseSeconds = 60
// A version that looks up passwords in the database of the client lets the first client of an unknown database wait.
const unknownDatabaseSeconds = 15

/**
 * Startup parameters of clients that have no effect on pooled sessions. PgBouncer refuses a client that sends one it neither
 * applies nor is told to ignore, and compares the names exactly.
 */
export const ignoredParameters: readonly string[] = [
  'options',
  'extra_float_digits',
  'search_path',
  'client_min_messages',
  'statement_timeout',
  'lock_timeout',
  'idle_in_transaction_session_timeout',
  'idle_session_timeout',
  'transaction_timeout',
  'default_transaction_isolation',
  'default_transaction_deferrable',
  'synchronous_commit',
  'bytea_output',
  'work_mem',
  'plan_cache_mode',
  'row_security',
  'geqo',
  'jit',
]

/** Parameters that PostgreSQL reports to clients, so that PgBouncer can apply them to each session that a client uses. */
export const trackedParameters: readonly string[] = ['IntervalStyle', 'default_transaction_read_only']

/** What DISCARD ALL does, except that it keeps prepared statements and their plans. */
const resetExceptPrepared = [
  'CLOSE ALL',
  'SET SESSION AUTHORIZATION DEFAULT',
  'RESET ROLE',
  'RESET ALL',
  'UNLISTEN *',
  'SELECT pg_catalog.pg_advisory_unlock_all()',
  'DISCARD TEMP',
  'DISCARD SEQUENCES',
].join('; ')

type Settings = Record<string, string | number>

export function renderPooler(paths: ClusterPaths, spec: PoolerSpec, version: number[]): string {
  const settings = { ...networkSettings(paths, spec), ...poolSettings(spec), ...settingsOfVersion(spec, version) }
  const server = `host='${paths.sockets.replaceAll("'", "''")}' port=${spec.postgresPort} auth_user=${poolerUser}`
  return [
    '[databases]',
    // Tenants create databases in SQL and expect to reach them at once. auth_user is set here and not globally, so that it
    // does not apply to the console.
    `* = ${server}`,
    '',
    '[users]',
    `${poolerUser} = max_user_connections=${poolerConnections}`,
    '',
    '[pgbouncer]',
    ...Object.entries(settings).map(([name, value]) => `${name} = ${value}`),
    '',
  ].join('\n')
}

function networkSettings(paths: ClusterPaths, spec: PoolerSpec): Settings {
  return {
    listen_addr: spec.listen,
    listen_port: spec.port,
    // No Unix socket: there, the Unix user of the cluster would have full access to the console.
    unix_socket_dir: '',
    auth_type: 'scram-sha-256',
    auth_file: userFile(paths),
    // Read-only access to the console.
    stats_users: poolerUser,
    auth_query: 'SELECT username, password FROM pg_berth.lookup($1)',
    client_tls_sslmode: 'prefer',
    client_tls_cert_file: `${paths.tls}/server.crt`,
    client_tls_key_file: `${paths.tls}/server.key`,
    // Clients need no certificate. Without this file, PgBouncer would load all CA certificates of the host at start.
    client_tls_ca_file: `${paths.tls}/server.crt`,
    log_connections: 0,
    log_disconnections: 0,
    log_stats: 0,
  }
}

/** There is a pool per database and user. The server has as many connections for tenants as one database or user may take. */
function poolSettings({ plan, poolMode }: PoolerSpec): Settings {
  const total = plan.databaseConnections + plan.reserveConnections
  return {
    pool_mode: poolMode,
    max_client_conn: plan.poolerClients,
    default_pool_size: plan.databaseConnections,
    reserve_pool_size: plan.reserveConnections,
    reserve_pool_timeout: reserveSeconds,
    max_db_connections: total,
    max_user_connections: total,
    server_idle_timeout: serverIdleSeconds,
    server_login_retry: loginRetrySeconds,
    autodb_idle_timeout: unusedDatabaseSeconds,
    // In transaction mode too, so that no client sees settings, locks or temporary tables of another one.
    server_reset_query: 'DISCARD ALL',
    server_reset_query_always: 1,
  }
}

function settingsOfVersion({ poolMode }: PoolerSpec, [major = 1, minor = 0]: number[]): Settings {
  const isSince = (wanted: number) => major > 1 || minor >= wanted
  const canTrack = isSince(20)
  const keepsPrepared = isSince(21) && poolMode === 'transaction'
  // Older versions refuse these parameters unless they ignore them, also in lower case.
  const untracked = trackedParameters.flatMap((name) => [...new Set([name, name.toLowerCase()])])
  return {
    ignore_startup_parameters: [...ignoredParameters, ...(canTrack ? [] : untracked)].join(','),
    ...(canTrack && { track_extra_parameters: trackedParameters.join(',') }),
    ...(isSince(19) ? { auth_dbname: superuser } : { query_wait_timeout: unknownDatabaseSeconds }),
    ...(isSince(21) && { max_prepared_statements: 200 }),
    ...(keepsPrepared && { server_reset_query: resetExceptPrepared }),
  }
}
