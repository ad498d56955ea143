// The PostgreSQL settings of a cluster, derived from its plan and the host. Pure functions.
import type { Plan } from '../../model/postgres/plan.ts'
import { poolerUser, superuser } from './sql/platform-role.ts'

export interface SettingsInput {
  id: string
  plan: Plan
  hostMemoryMb: number
  diskSizeGb: number
  /** Addresses to listen on, comma-separated; empty for none. */
  listen: string
  port: number
  socketDirectory: string
  tlsDirectory: string
  accessFile: string
  identityFile: string
  hasStatements: boolean
  hasJit: boolean
  /** Settings that override the derived ones. */
  overrides?: Record<string, string> | undefined
}

export type Settings = Record<string, string>

/** Connections reserved for the platform, which connects as superuser, and for the password lookup of the pooler. */
const superuserConnections = 5
export const poolerConnections = 3

export function clusterSettings(input: SettingsInput): Settings {
  return {
    ...connectionSettings(input),
    ...memorySettings(input),
    ...walSettings(input),
    // Per session. Only a superuser can raise it, so a single query cannot fill the disk with its temporary files.
    temp_file_limit: megabytes(Math.max(1024, (input.diskSizeGb * 1024) / 4)),
    ...logSettings(input),
    password_encryption: 'scram-sha-256',
    timezone: 'UTC',
    jit: input.hasJit ? 'on' : 'off',
    ...input.overrides,
  }
}

function connectionSettings({
  plan,
  listen,
  port,
  socketDirectory,
  tlsDirectory,
  accessFile,
  identityFile,
}: SettingsInput): Settings {
  const clients = plan.databaseConnections + plan.reserveConnections
  return {
    listen_addresses: listen,
    port: String(port),
    unix_socket_directories: socketDirectory,
    unix_socket_permissions: '0700',
    hba_file: accessFile,
    ident_file: identityFile,
    // Twice, because sessions of the platform take connections of which the reserved ones must still be free.
    max_connections: String(clients + 2 * (poolerConnections + superuserConnections)),
    superuser_reserved_connections: String(superuserConnections),
    reserved_connections: String(poolerConnections),
    // Enables two-phase commit. Each slot takes as much shared memory as a connection, and few are used at once.
    max_prepared_transactions: String(Math.ceil(plan.databaseConnections / 2)),
    // A connection that never completes its login blocks DROP DATABASE.
    authentication_timeout: '5s',
    // Below the default of 64: the lock table is allocated at start for all connections, and serializable transactions share it.
    max_pred_locks_per_transaction: '32',
    ssl: 'on',
    ssl_cert_file: `${tlsDirectory}/server.crt`,
    ssl_key_file: `${tlsDirectory}/server.key`,
    ssl_min_protocol_version: 'TLSv1.2',
    // The connection of a client that vanished is closed after about 90 seconds.
    tcp_keepalives_idle: '60',
    tcp_keepalives_interval: '10',
    tcp_keepalives_count: '3',
  }
}

function memorySettings({ plan, hostMemoryMb }: SettingsInput): Settings {
  // A cluster that plans with more than half of the host's memory would leave nothing to the others.
  const memoryMb = Math.min(plan.memoryMb, Math.floor(hostMemoryMb / 2))
  // A quarter is the usual share. Buffer headers are touched at start, so small plans get a little less.
  const sharedMb = clamp(memoryMb / 4 - 64, 32, 8192)
  const clients = plan.databaseConnections + plan.reserveConnections
  return {
    shared_buffers: megabytes(sharedMb),
    effective_cache_size: megabytes((memoryMb * 3) / 4),
    // A query may use a multiple of this, but rarely do all connections at once.
    work_mem: megabytes(clamp((memoryMb - sharedMb) / clients / 2, 4, 64)),
    maintenance_work_mem: megabytes(clamp(memoryMb / 16, 32, 2048)),
    // The operator must reserve huge pages; with `try`, clusters would take those meant for other programs.
    huge_pages: 'off',
    max_worker_processes: String(Math.max(8, plan.cpus)),
    max_parallel_workers: String(plan.cpus),
    max_parallel_workers_per_gather: String(Math.max(1, Math.floor(plan.cpus / 2))),
    // Assumes SSDs.
    random_page_cost: '1.1',
  }
}

function walSettings({ plan, diskSizeGb }: SettingsInput): Settings {
  const diskMb = diskSizeGb * 1024
  return {
    wal_level: 'replica',
    max_wal_senders: '10',
    max_replication_slots: '10',
    // Invalidates the slot of a disconnected receiver before its WAL fills the disk of the cluster.
    max_slot_wal_keep_size: megabytes(Math.min(diskMb / 4, 4096)),
    track_commit_timestamp: 'on',
    wal_compression: 'on',
    // The default depends on shared_buffers and is touched entirely at start: memory that an idle cluster would keep.
    wal_buffers: megabytes(clamp(plan.memoryMb / 1024, 1, 16)),
    // Tenants cannot create subscriptions; this saves the process of the launcher.
    max_logical_replication_workers: '0',
    min_wal_size: '80MB',
    max_wal_size: megabytes(clamp(plan.memoryMb, 512, Math.min(16_384, diskMb / 8))),
    checkpoint_completion_target: '0.9',
  }
}

/** Of a cluster that a live import replicates into. */
export const subscriberSettings: Settings = { max_logical_replication_workers: '4' }

function logSettings({ id, plan, hasStatements }: SettingsInput): Settings {
  return {
    cluster_name: id,
    log_destination: 'stderr',
    logging_collector: 'off',
    log_connections: 'off',
    // s6-log adds the time to each line.
    log_line_prefix: '[%p] %q%u@%d ',
    log_timezone: 'UTC',
    shared_preload_libraries: hasStatements ? 'pg_stat_statements' : '',
    // The hash table is touched entirely at start.
    ...(hasStatements && { 'pg_stat_statements.max': String(clamp(plan.memoryMb, 1000, 5000)) }),
  }
}

function clamp(value: number, min: number, max: number): number {
  return Math.max(min, Math.min(value, max))
}

function megabytes(value: number): string {
  return `${Math.floor(value)}MB`
}

/** Settings that only take effect at the start of the server. */
const fixedAtStart = new Set([
  'cluster_name',
  'hba_file',
  'hot_standby',
  'huge_pages',
  'ident_file',
  'listen_addresses',
  'logging_collector',
  'max_connections',
  'max_logical_replication_workers',
  'max_pred_locks_per_transaction',
  'max_prepared_transactions',
  'max_replication_slots',
  'max_wal_senders',
  'max_worker_processes',
  'pg_stat_statements.max',
  'port',
  'reserved_connections',
  'shared_buffers',
  'shared_preload_libraries',
  'superuser_reserved_connections',
  'track_commit_timestamp',
  'unix_socket_directories',
  'unix_socket_permissions',
  'wal_buffers',
  'wal_level',
])

/** Separates settings whose change requires a restart from those that are read again on SIGHUP. */
export function splitSettings(settings: Settings): { fixed: Settings; reloadable: Settings } {
  const entries = Object.entries(settings)
  return {
    fixed: Object.fromEntries(entries.filter(([name]) => fixedAtStart.has(name))),
    reloadable: Object.fromEntries(entries.filter(([name]) => !fixedAtStart.has(name))),
  }
}

export function renderSettings(settings: Settings): string {
  return Object.entries(settings)
    .map(([name, value]) => `${name} = '${value.replaceAll('\\', '\\\\').replaceAll("'", "''")}'\n`)
    .join('')
}

/**
 * Renders pg_hba.conf. The platform connects through the Unix socket and is identified by its Unix user; everyone else needs
 * a password. Over the network the platform's own roles are rejected, and TLS is optional, because not all clients use it.
 * A closed cluster, such as one in recovery, accepts only the platform, in any role.
 */
export function renderAccess({ closed = false }: { closed?: boolean | undefined } = {}): string {
  const platform = `local all,replication ${superuser} peer map=${platformMap}`
  if (closed) return `${platform}\nlocal all all peer map=${anyRoleMap}\n`
  return [
    platform,
    'local all all scram-sha-256',
    `host all ${superuser},${poolerUser} all reject`,
    'host all all 0.0.0.0/0 scram-sha-256',
    'host all all ::/0 scram-sha-256',
    '',
  ].join('\n')
}

const platformMap = 'platform'
const anyRoleMap = 'any_role'

/** Renders pg_ident.conf: the Unix users that may connect as the superuser, and to a closed cluster in any role. */
export function renderIdentities(users: string[]): string {
  const quoted = users.map((name) => `"${name.replaceAll('"', '""')}"`)
  const lines = quoted.flatMap((name) => [`${platformMap} ${name} ${superuser}`, `${anyRoleMap} ${name} all`])
  return `${lines.join('\n')}\n`
}
