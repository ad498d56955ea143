// One PgBouncer for each cluster. It knows no passwords: it asks the cluster for the one of whoever comes, so that new
// users and new passwords work at once, and then logs in through the platform's socket, where it is trusted.
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import type { PoolMode } from '../../../model/postgres/cluster.ts'
import type { Plan } from '../../../model/postgres/plan.ts'
import { ensureDirectory, ensureFile } from '../../host/fresh.ts'
import type { Home } from '../../host/home.ts'
import { findCommand, run, waitUntil } from '../../host/process.ts'
import { accepts } from '../../network/port.ts'
import { forgetReload, needsReload, writeConfiguration } from '../../s6/reload.ts'
import type { Supervisor } from '../../s6/supervisor.ts'
import { type ClusterPaths, clusterPaths } from '../paths.ts'
import { poolerUser } from '../sql/rights.ts'
import { askConsole, type PoolerAddress, userFile } from './console.ts'
import { endPooledSessions, type PooledSessions } from './session.ts'

export interface PoolerSpec {
  uid?: number | undefined
  plan: Plan
  poolMode: PoolMode
  /** The databases that clients reach. Any other name is refused at once, where PgBouncer would let the client wait. */
  databases: string[]
  listen: string
  port: number
  postgresPort: number
  cgroup?: string[] | undefined
}

export type PoolerProcess = { is: 'absent' } | { is: 'stopped'; log: string[] } | { is: 'running'; pid: number }

export interface PoolerDriver {
  /** Afterwards the pooler runs by this spec or is about to. It uses the certificate of the cluster. */
  ensurePooler(id: string, spec: PoolerSpec): Promise<void>
  inspectPooler(id: string): Promise<PoolerProcess>
  /** Ends what clients have open through it, at once; none of them is told why. */
  endSessions(id: string, address: PoolerAddress, which: PooledSessions): Promise<void>
  removePooler(id: string): Promise<void>
}

const logLines = 20
const reserveSeconds = 3
// It takes some milliseconds, more only where clients of a name that is listed no more keep it from being forgotten.
const reloadSeconds = 2
// A connection that nobody uses costs the cluster some megabytes, and another one some milliseconds.
const idleSeconds = 10

export function poolerDriver({ home, supervisor }: { home: Home; supervisor: Supervisor }): PoolerDriver {
  const serviceOf = (id: string) => clusterPaths(home, id).poolerService
  return {
    ensurePooler: (id, spec) => ensurePooler(home, supervisor, id, spec),
    inspectPooler: (id) => inspectPooler(supervisor, serviceOf(id)),
    endSessions: async (id, address, which) => {
      const state = await supervisor.inspectService(serviceOf(id))
      // One that does not listen yet has nobody.
      if (state.is !== 'up' || !(await accepts(address.listen, address.port))) return
      await endPooledSessions(clusterPaths(home, id), state.pid, address, which)
    },
    removePooler: (id) => supervisor.removeService(serviceOf(id)),
  }
}

async function ensurePooler(home: Home, supervisor: Supervisor, id: string, spec: PoolerSpec): Promise<void> {
  const pgbouncer = findCommand('pgbouncer')
  if (pgbouncer === undefined) throw new Error('PgBouncer is not installed: apt-get install pgbouncer')
  const paths = clusterPaths(home, id)
  const file = `${paths.pooler}/pgbouncer.ini`
  ensureDirectory(paths.pooler, { mode: 0o711 })
  ensureOwnPassword(paths, spec.uid)
  writeConfiguration(paths.pooler, { [file]: renderPooler(paths, spec, await findVersion(pgbouncer)) })
  await supervisor.ensureService(paths.poolerService, {
    command: [pgbouncer, file],
    uid: spec.uid,
    // It reads these from its file, but at its start only: as part of the service a change means a restart.
    env: { BERTH_LISTEN: `${spec.listen}:${spec.port}` },
    // With SIGINT it would wait for its clients.
    stopSignal: 'SIGTERM',
    stopTimeoutSeconds: 5,
    cgroup: spec.cgroup,
  })
  // Before it listens it would die of the signal; what it reads then is new already, and the next look tells it.
  if (!needsReload(paths.pooler) || !(await accepts(spec.listen, spec.port))) return
  await supervisor.signalService(paths.poolerService, 'SIGHUP')
  forgetReload(paths.pooler)
  await waitUntil(() => hasRead(paths, spec), reloadSeconds)
}

/** A signal is answered by nobody; but whoever made a database may connect to it right after. */
async function hasRead(paths: ClusterPaths, spec: PoolerSpec): Promise<boolean> {
  const rows = await askConsole<{ name: string }>(paths, spec, 'show databases').catch(() => [])
  const known = new Set(rows.map(({ name }) => name))
  const named = namedDatabases(spec)
  return named.has('*') || ([...named].every((name) => known.has(name)) && known.size === named.size + 1)
}

// The cluster trusts the pooler without. The platform asks the pooler with it about its clients.
function ensureOwnPassword(paths: ClusterPaths, uid: number | undefined): void {
  if (existsSync(userFile(paths))) return
  const line = `"${poolerUser}" "${randomBytes(24).toString('hex')}"\n`
  ensureFile(userFile(paths), line, { mode: 0o600, uid })
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
  // Older ones know nothing of prepared statements, which then work in session mode only.
  const keepsPrepared = major > 1 || minor >= 21
  const settings = {
    listen_addr: spec.listen,
    listen_port: spec.port,
    // On a socket of its own, the user of the cluster could do everything at the console.
    unix_socket_dir: '',
    pool_mode: spec.poolMode,
    auth_type: 'scram-sha-256',
    auth_file: userFile(paths),
    // May look at the console, and change nothing.
    stats_users: poolerUser,
    auth_query: 'SELECT username, password FROM pg_berth.lookup($1)',
    max_client_conn: plan.poolerClients,
    default_pool_size: plan.databaseConnections,
    reserve_pool_size: plan.reserveConnections,
    reserve_pool_timeout: reserveSeconds,
    max_db_connections: plan.databaseConnections + plan.reserveConnections,
    server_reset_query: 'DISCARD ALL',
    server_idle_timeout: idleSeconds,
    // Sent by the drivers of Java and others, and of no consequence.
    ignore_startup_parameters: 'extra_float_digits',
    ...(keepsPrepared && { max_prepared_statements: 200 }),
    client_tls_sslmode: 'prefer',
    client_tls_cert_file: `${paths.tls}/server.crt`,
    client_tls_key_file: `${paths.tls}/server.key`,
    // Nobody is asked for a certificate; without a file here all that the host trusts would be read at every start.
    client_tls_ca_file: `${paths.tls}/server.crt`,
    log_connections: 0,
    log_disconnections: 0,
    log_stats: 0,
  }
  const lines = Object.entries(settings).map(([name, value]) => `${name} = ${value}`)
  return ['[databases]', ...databaseLines(paths, spec), '', '[pgbouncer]', ...lines, ''].join('\n')
}

// The user who asks for passwords is named with each database, so that there is none for the database of the console.
// PgBouncer's file takes plain names only: any other opens it to all names.
function databaseLines(paths: ClusterPaths, spec: PoolerSpec): string[] {
  const server = `host='${paths.sockets.replaceAll("'", "''")}' port=${spec.postgresPort} auth_user=${poolerUser}`
  return [...namedDatabases(spec)].map((key) => `${key} = ${server}`)
}

function namedDatabases({ databases }: PoolerSpec): Set<string> {
  return new Set(databases.map((name) => (/^[A-Za-z0-9_.-]+$/.test(name) ? name : '*')))
}

async function inspectPooler(supervisor: Supervisor, service: string): Promise<PoolerProcess> {
  const state = await supervisor.inspectService(service)
  if (state.is === 'absent') return { is: 'absent' }
  if (state.is === 'down') return { is: 'stopped', log: supervisor.readLog(service, logLines) }
  return { is: 'running', pid: state.pid }
}
