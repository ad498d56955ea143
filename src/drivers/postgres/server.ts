// A managed cluster in the outside world: its data directory, its server under the supervisor, and a way to ask it.
// Every function may be stopped anywhere and run again.
import { existsSync, readdirSync, realpathSync } from 'node:fs'
import { totalmem } from 'node:os'
import type { Plan } from '../../model/postgres/plan.ts'
import { ensureServerCertificate } from '../host/certificate.ts'
import { readTextIfPresent } from '../host/file.ts'
import { ensureDirectory, removeAbandoned } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { run, waitUntil } from '../host/process.ts'
import { filterProcesses, findWorkingDirectory, type Process } from '../host/process-list.ts'
import { discard, sweepTrash } from '../host/trash.ts'
import { forgetReload, needsReload, noteReload, writeConfiguration } from '../s6/reload.ts'
import type { Supervisor } from '../s6/supervisor.ts'
import { killUntilGone } from '../s6/tree-process.ts'
import { clearStaleLocks } from '../state/database.ts'
import { type DataOptions, ensureClusterDirectory, ensureData } from './data.ts'
import { type ClusterPaths, clusterPaths } from './paths.ts'
import { clusterSettings, renderAccess, renderSettings, splitSettings } from './settings.ts'
import { openConnections, type ProbeTarget, probe, type Query } from './sql/connection.ts'
import type { Toolchain } from './toolchain/toolchain.ts'
import { hasLibrary } from './toolchain/tools.ts'

export interface ClusterSpec {
  toolchain: Toolchain
  uid?: number | undefined
  plan: Plan
  diskSizeGb: number
  /** Where clients connect: the addresses to listen on, the names under which they know them, and the port. */
  listen: string
  hosts: string[]
  port: number
  /** Files of control groups that the processes join. */
  cgroup?: string[] | undefined
  /** Settings that win over those derived from the plan. */
  settings?: Record<string, string> | undefined
  /** Only the platform may connect. Opening and closing it takes no restart. */
  closed?: boolean | undefined
}

export type ClusterProcess =
  | { is: 'absent' }
  | { is: 'stopped'; log: string[] }
  | { is: 'starting'; pid: number }
  | { is: 'ready'; pid: number }

export interface PostgresDriver {
  /** The ids of all clusters that have left anything on this machine. */
  list(): string[]
  ensureData(id: string, options: DataOptions): Promise<void>
  /** Afterwards the server runs by this spec or is about to; a change that needs a restart restarts it. */
  ensureRunning(id: string, spec: ClusterSpec): Promise<void>
  /** A look without connecting. */
  inspect(id: string): Promise<ClusterProcess>
  /** Looks until the server is ready or the time is over, and says what it saw last. */
  waitUntilReady(id: string, timeoutSeconds: number): Promise<ClusterProcess>
  /** As superuser, through the platform's socket. */
  query: Query
  /** The same on a connection that is kept, for a question that is asked again and again and reads little. */
  watch: Query
  closeConnections(id: string, database?: string): Promise<void>
  /** Throws unless a client with these words gets an answer. */
  probe(target: ProbeTarget): Promise<void>
  /** Bytes of the data directory. Reads all of it, so not for a request. */
  measure(id: string): Promise<number>
  stop(id: string): Promise<void>
  /** Nothing of it is left; the data is deleted in the background. */
  remove(id: string): Promise<void>
}

const stopSeconds = 60
const logLines = 20

export interface PostgresParts {
  home: Home
  supervisor: Supervisor
}

export function postgresDriver(parts: PostgresParts): PostgresDriver {
  const { home, supervisor } = parts
  const connections = openConnections(home)
  return {
    list: () => listClusters(home),
    ensureData: (id, options) => ensureData(home, id, options),
    ensureRunning: (id, spec) => ensureRunning(parts, id, spec),
    inspect: (id) => inspect(supervisor, clusterPaths(home, id)),
    waitUntilReady: (id, timeoutSeconds) => waitUntilReady(supervisor, clusterPaths(home, id), timeoutSeconds),
    query: connections.query,
    watch: connections.watch,
    closeConnections: connections.close,
    probe,
    measure: (id) => measure(clusterPaths(home, id).data),
    async stop(id) {
      await connections.close(id)
      await supervisor.stopService(clusterPaths(home, id).service)
    },
    async remove(id) {
      await connections.close(id)
      await remove(parts, id)
    },
  }
}

function listClusters(home: Home): string[] {
  const directory = `${home.path}/clusters`
  return existsSync(directory) ? readdirSync(directory).sort() : []
}

async function ensureRunning({ home, supervisor }: PostgresParts, id: string, spec: ClusterSpec): Promise<void> {
  const paths = clusterPaths(home, id)
  if (!existsSync(paths.data)) throw new Error(`start cluster ${id}: it has no data directory`)
  await ensureClusterDirectory(home, paths)
  // With the data in its place nobody makes it any more; a copy whose maker was killed may have gone on by itself.
  await removeAbandoned(paths.directory, 0)
  ensureDirectory(paths.sockets, { mode: 0o700, uid: spec.uid })
  const renewed = await ensureServerCertificate({ home, directory: paths.tls, hosts: spec.hosts, uid: spec.uid })
  if (renewed && existsSync(paths.settings)) {
    for (const user of [paths.directory, paths.pooler].filter(existsSync)) noteReload(user)
  }
  const { fixed, reloadable } = splitSettings(settingsOf(paths, id, spec))
  writeConfiguration(paths.directory, {
    [paths.settings]: renderSettings(reloadable),
    [paths.access]: renderAccess(spec),
  })
  await supervisor.ensureService(paths.service, {
    command: [`${spec.toolchain.bin}/postgres`, ...serverArguments(paths, fixed)],
    uid: spec.uid,
    stopSignal: 'SIGINT',
    stopTimeoutSeconds: stopSeconds,
    beforeStart: [clearStaleLocks(paths.data, `${paths.sockets}/.s.PGSQL.${spec.port}.lock`)],
    cgroup: spec.cgroup,
  })
  if (await lacksSocket(supervisor, paths, spec.port)) await supervisor.restartService(paths.service)
  if (needsReload(paths.directory)) await reload(supervisor, paths)
}

/** A server makes its socket at its start only: without it neither the platform nor the pooler gets in any more. */
async function lacksSocket(supervisor: Supervisor, paths: ClusterPaths, port: number): Promise<boolean> {
  return !existsSync(`${paths.sockets}/.s.PGSQL.${port}`) && (await inspect(supervisor, paths)).is === 'ready'
}

// Outside the data directory, so that a backup does not bring the settings of another cluster along.
function serverArguments(paths: ClusterPaths, fixed: Record<string, string>): string[] {
  const settings = { config_file: paths.settings, ...fixed }
  return ['-D', paths.data, ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])]
}

function settingsOf(paths: ClusterPaths, id: string, spec: ClusterSpec): Record<string, string> {
  return clusterSettings({
    id,
    plan: spec.plan,
    hostMemoryMb: Math.floor(totalmem() / 1024 / 1024),
    diskSizeGb: spec.diskSizeGb,
    listen: spec.listen,
    port: spec.port,
    socketDirectory: paths.sockets,
    tlsDirectory: paths.tls,
    accessFile: paths.access,
    hasStatements: hasLibrary(spec.toolchain, 'pg_stat_statements'),
    hasJit: hasLibrary(spec.toolchain, 'llvmjit'),
    overrides: spec.settings,
  })
}

// To a server that is not ready the signal would be the end, and what it reads while it starts is new already; it is
// told again at the next look, because it may have read the files just before they changed.
async function reload(supervisor: Supervisor, paths: ClusterPaths): Promise<void> {
  if ((await inspect(supervisor, paths)).is !== 'ready') return
  await supervisor.signalService(paths.service, 'SIGHUP')
  forgetReload(paths.directory)
}

async function inspect(supervisor: Supervisor, paths: ClusterPaths): Promise<ClusterProcess> {
  if (!existsSync(paths.data)) return { is: 'absent' }
  const state = await supervisor.inspectService(paths.service)
  if (state.is !== 'up') return { is: 'stopped', log: supervisor.readLog(paths.service, logLines) }
  // The file of a server that was killed says that it is ready as well.
  return { is: findReadyPid(paths) === state.pid ? 'ready' : 'starting', pid: state.pid }
}

/** PostgreSQL keeps its pid in the first line of this file and what it is doing in the eighth. */
function findReadyPid(paths: ClusterPaths): number | undefined {
  const lines = readTextIfPresent(`${paths.data}/postmaster.pid`)?.split('\n') ?? []
  return lines[7]?.trim() === 'ready' ? Number(lines[0]) : undefined
}

// Only when the file has changed there is something to ask the supervisor, which takes a process each time.
async function waitUntilReady(
  supervisor: Supervisor,
  paths: ClusterPaths,
  timeoutSeconds: number,
): Promise<ClusterProcess> {
  let seen: ClusterProcess = await inspect(supervisor, paths)
  let asked = findReadyPid(paths)
  await waitUntil(async () => {
    const pid = findReadyPid(paths)
    if (pid !== undefined && pid !== asked) seen = await inspect(supervisor, paths)
    asked = pid
    return seen.is === 'ready'
  }, timeoutSeconds)
  return seen.is === 'ready' ? seen : inspect(supervisor, paths)
}

// Files come and go under du, which then says so and fails although its sum is as good as any.
async function measure(directory: string): Promise<number> {
  const { stdout } = await run('sh', ['-c', 'du -sb "$1" 2>/dev/null || :', 'measure', directory], {
    timeoutSeconds: 600,
  })
  const bytes = Number.parseInt(stdout, 10)
  if (Number.isNaN(bytes)) throw new Error(`measure ${directory}: du found nothing`)
  return bytes
}

async function remove({ home, supervisor }: PostgresParts, id: string): Promise<void> {
  const paths = clusterPaths(home, id)
  await supervisor.removeService(paths.poolerService)
  // No reason to wait long for the shutdown of what is thrown away.
  await supervisor.stopService(paths.service, { timeoutSeconds: 1 })
  await supervisor.removeService(paths.service)
  await endRemains(paths)
  discard(home, paths.sockets)
  discard(home, paths.directory)
  sweepTrash(home)
}

/**
 * The processes of a server have sessions of their own and write over the environment they were started with, so that the
 * supervisor does not find one that outlives it. All of them work in the data directory.
 */
async function endRemains({ data }: ClusterPaths): Promise<void> {
  if (!existsSync(data)) return
  const directory = realpathSync(data)
  const isOfServer = ({ pid, name }: Process) => name === 'postgres' && findWorkingDirectory(pid) === directory
  const gone = await killUntilGone(() => filterProcesses(isOfServer))
  if (!gone) throw new Error(`end the processes in ${data}: they survive SIGKILL`)
}
