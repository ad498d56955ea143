// One PgBouncer per cluster. It stores no passwords of users: it looks up the verifier of each client's password in the
// cluster, so that new users and passwords work at once, and then logs in through the platform's Unix socket with the key
// that the client's own login has proven.
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { unavailable } from '../../../model/errors.ts'
import { waitUntil } from '../../../model/poll.ts'
import type { PoolerSpec } from '../../../model/postgres/spec.ts'
import { confineService, findConfined } from '../../confine/confine.ts'
import { canConfine } from '../../confine/probe.ts'
import { ensureDirectory, ensureFile } from '../../host/atomic-file.ts'
import type { Home } from '../../host/home.ts'
import { findCommand, run } from '../../host/process.ts'
import { isListening } from '../../network/port.ts'
import type { Supervisor } from '../../s6/driver.ts'
import { clearReload, needsReload, writeReloadableFiles } from '../../s6/reload.ts'
import { publishedAddresses, replacedAddresses } from '../confinement.ts'
import { type ClusterPaths, clusterPaths } from '../paths.ts'
import { inspectProcess } from '../service.ts'
import type { SqlClient } from '../sql/driver.ts'
import { poolerUser, superuser } from '../sql/platform-role.ts'
import { quoteLiteral } from '../sql/quote.ts'
import { scramVerifier } from '../sql/scram.ts'
import { clusterUsers, sharedWithServer } from '../users.ts'
import { queryConsole, userFile } from './console.ts'
import type { PoolerDriver } from './driver.ts'
import { endPooledSessions } from './session.ts'

// PgBouncer uses the reserve pool for clients that have waited this long.
const reserveSeconds = 3
// A reload takes milliseconds, unless clients of a removed database keep its entry alive.
const reloadTimeoutSeconds = 2
// An idle server connection costs some megabytes, and opening another one some milliseconds.
const serverIdleSeconds = 10

export interface PoolerParts {
  home: Home
  supervisor: Supervisor
  postgres: Pick<SqlClient, 'query'>
}

export function poolerDriver(parts: PoolerParts): PoolerDriver {
  const { home, supervisor } = parts
  const serviceOf = (id: string) => clusterPaths(home, id).poolerService
  return {
    ensurePooler: (id, spec) => ensurePooler(parts, id, spec),
    inspectPooler: (id) => inspectProcess(supervisor, serviceOf(id)),
    endSessions: async (id, address, sessions) => {
      const state = await supervisor.inspectService(serviceOf(id))
      // A pooler that does not listen yet has no clients.
      if (state.is !== 'up' || !(await isListening(address.listen, address.port))) return
      const pid = findConfined(state.pid, 'pgbouncer')
      // One that was killed may still listen for a moment.
      if (pid === undefined) throw unavailable('The pooler is starting')
      await endPooledSessions(clusterPaths(home, id), pid, address, sessions)
    },
    removePooler: (id) => supervisor.removeService(serviceOf(id)),
  }
}

async function ensurePooler(parts: PoolerParts, id: string, spec: PoolerSpec): Promise<void> {
  const { home, supervisor } = parts
  const pgbouncer = findCommand('pgbouncer')
  if (pgbouncer === undefined) throw new Error('PgBouncer is not installed: apt-get install pgbouncer')
  const paths = clusterPaths(home, id)
  const file = `${paths.pooler}/pgbouncer.ini`
  const users = await clusterUsers(spec.uid)
  ensureDirectory(paths.pooler, sharedWithServer(users))
  await ensurePassword(parts, id, users.pooler?.uid)
  const published = await publishedAddresses(spec.listen, spec.port)
  const listen = (await canConfine()) ? replacedAddresses(published).join(',') : spec.listen
  const version = await findVersion(pgbouncer)
  writeReloadableFiles(paths.pooler, { [file]: renderPooler(paths, { ...spec, listen }, version) })
  const command = await confineService(home, [pgbouncer, file], {
    user: users.pooler,
    readable: [paths.pooler, paths.tls, paths.sockets],
    listen: published,
  })
  await supervisor.ensureService(paths.poolerService, {
    command,
    // PgBouncer reads its address only at start. As part of the service definition, a change causes a restart.
    env: { BERTH_LISTEN: `${spec.listen}:${spec.port}` },
    // On SIGINT it would wait for its clients.
    stopSignal: 'SIGTERM',
    stopTimeoutSeconds: 5,
    cgroup: spec.cgroup,
  })
  // SIGHUP would terminate it before it listens. The note about the reload stays until the next call.
  if (!needsReload(paths.pooler) || !(await isListening(spec.listen, spec.port))) return
  await supervisor.signalService(paths.poolerService, 'SIGHUP')
  clearReload(paths.pooler)
  await waitUntil(() => hasReloaded(paths, spec), reloadTimeoutSeconds)
}

/** SIGHUP is asynchronous, but a caller may connect to a new database as soon as it was created. */
async function hasReloaded(paths: ClusterPaths, spec: PoolerSpec): Promise<boolean> {
  const rows = await queryConsole<{ name: string }>(paths, spec, 'show databases').catch(() => [])
  const known = new Set(rows.map(({ name }) => name))
  const named = namedDatabases(spec)
  return named.has('*') || ([...named].every((name) => known.has(name)) && known.size === named.size + 1)
}

// The platform logs in to the console with it, and the pooler to the server. A restored cluster has the verifier of its
// source and gets another one here. The file is written last, so that a password in it is always one that works.
async function ensurePassword({ home, postgres }: PoolerParts, id: string, uid: number | undefined): Promise<void> {
  const file = userFile(clusterPaths(home, id))
  if (existsSync(file)) return
  const password = randomBytes(24).toString('hex')
  const statement = `ALTER ROLE ${poolerUser} PASSWORD ${quoteLiteral(scramVerifier(password))}`
  await postgres.query(id, superuser, statement)
  ensureFile(file, `"${poolerUser}" "${password}"\n`, { mode: 0o600, uid })
}

const versions = new Map<string, number[]>()

async function findVersion(pgbouncer: string): Promise<number[]> {
  const known = versions.get(pgbouncer)
  if (known) return known
  const { stdout } = await run(pgbouncer, ['--version'])
  const version = /(\d+)\.(\d+)/.exec(stdout)?.slice(1).map(Number) ?? []
  versions.set(pgbouncer, version)
  return version
}

export function renderPooler(paths: ClusterPaths, spec: PoolerSpec, [major = 1, minor = 0]: number[]): string {
  const { plan } = spec
  // Older versions support prepared statements in session mode only.
  const supportsPrepared = major > 1 || minor >= 21
  const settings = {
    listen_addr: spec.listen,
    listen_port: spec.port,
    // No Unix socket: there, the Unix user of the cluster would have full access to the console.
    unix_socket_dir: '',
    pool_mode: spec.poolMode,
    auth_type: 'scram-sha-256',
    auth_file: userFile(paths),
    // Read-only access to the console.
    stats_users: poolerUser,
    auth_query: 'SELECT username, password FROM pg_berth.lookup($1)',
    max_client_conn: plan.poolerClients,
    default_pool_size: plan.databaseConnections,
    reserve_pool_size: plan.reserveConnections,
    reserve_pool_timeout: reserveSeconds,
    max_db_connections: plan.databaseConnections + plan.reserveConnections,
    server_reset_query: 'DISCARD ALL',
    server_idle_timeout: serverIdleSeconds,
    // Sent by JDBC and other drivers; safe to ignore.
    ignore_startup_parameters: 'extra_float_digits',
    ...(supportsPrepared && { max_prepared_statements: 200 }),
    client_tls_sslmode: 'prefer',
    client_tls_cert_file: `${paths.tls}/server.crt`,
    client_tls_key_file: `${paths.tls}/server.key`,
    // Clients need no certificate. Without this file, PgBouncer would load all CA certificates of the host at start.
    client_tls_ca_file: `${paths.tls}/server.crt`,
    log_connections: 0,
    log_disconnections: 0,
    log_stats: 0,
  }
  const lines = Object.entries(settings).map(([name, value]) => `${name} = ${value}`)
  return ['[databases]', ...databaseLines(paths, spec), '', '[pgbouncer]', ...lines, ''].join('\n')
}

// auth_user is set per database and not globally, so that it does not apply to the console. The file format allows
// simple names only; if any database has another name, all names are allowed.
function databaseLines(paths: ClusterPaths, spec: PoolerSpec): string[] {
  const server = `host='${paths.sockets.replaceAll("'", "''")}' port=${spec.postgresPort} auth_user=${poolerUser}`
  return [...namedDatabases(spec)].map((key) => `${key} = ${server}`)
}

function namedDatabases({ databases }: PoolerSpec): Set<string> {
  return new Set(databases.map((name) => (/^[A-Za-z0-9_.-]+$/.test(name) ? name : '*')))
}
