import { existsSync, readdirSync, realpathSync } from 'node:fs'
import { totalmem } from 'node:os'
import { waitUntil } from '../../model/poll.ts'
import type { ClusterSpec } from '../../model/postgres/spec.ts'
import { confineService } from '../confine/confine.ts'
import { canConfine } from '../confine/probe.ts'
import { ensureDirectory, ensureFile, removeAbandonedFiles } from '../host/atomic-file.ts'
import { ensureServerCertificate } from '../host/certificate.ts'
import type { Home } from '../host/home.ts'
import { run } from '../host/process.ts'
import { filterProcesses, findWorkingDirectory, type Process } from '../host/process-list.ts'
import { emptyTrash, moveToTrash } from '../host/trash.ts'
import type { Supervisor } from '../s6/driver.ts'
import { clearReload, needsReload, requestReload, writeReloadableFiles } from '../s6/reload.ts'
import { killUntilGone } from '../s6/tree-process.ts'
import { type InnerAddresses, innerAddresses, publishedAddresses, serverConfinement } from './confinement.ts'
import { ensureClusterDirectory, ensureData } from './data.ts'
import { dataDirectories } from './data-directory.ts'
import type { ClusterProcess, PostgresDriver } from './driver.ts'
import { ensureFirewall } from './firewall.ts'
import { readCheckpoint } from './identity.ts'
import { type ClusterPaths, clusterPaths } from './paths.ts'
import { findReadyService } from './postmaster.ts'
import {
  clusterSettings,
  renderAccess,
  renderIdentities,
  renderSettings,
  splitSettings,
  subscriberSettings,
} from './settings.ts'
import { sqlAdmin } from './sql/admin.ts'
import { openConnections, probe, writeConnection } from './sql/connection.ts'
import { hasLibrary } from './toolchain/tools.ts'
import { type ClusterUsers, clusterUsers, sharedWithServer } from './users.ts'

const stopSeconds = 60
const logLines = 20

export interface PostgresParts {
  home: Home
  supervisor: Supervisor
}

export function postgresDriver(parts: PostgresParts): PostgresDriver {
  const { home, supervisor } = parts
  const connections = openConnections(home)
  const client = { query: connections.query, closeConnections: connections.close }
  return {
    ...client,
    ...sqlAdmin(client),
    list: () => listClusters(home),
    data: dataDirectories(home),
    ensureData: (id, spec) => ensureData(home, id, spec),
    ensureRunning: (id, spec) => ensureRunning(parts, id, spec),
    inspect: (id) => inspect(supervisor, clusterPaths(home, id)),
    waitUntilReady: (id, timeoutSeconds) => waitUntilReady(supervisor, clusterPaths(home, id), timeoutSeconds),
    watch: connections.watch,
    probe,
    measure: (id, uid) => measure(clusterPaths(home, id).data, uid),
    async stop(id) {
      await connections.close(id)
      await supervisor.stopService(clusterPaths(home, id).service)
    },
    findCheckpoint: async (id) => readCheckpoint(clusterPaths(home, id).data),
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
  // The data directory exists, so any copy under a temporary name is left over from a killed process.
  await removeAbandonedFiles(paths.directory, 0)
  const users = await clusterUsers(spec.uid)
  const isConfined = await canConfine()
  prepareDirectories(paths, users, isConfined)
  if (spec.subscribes) ensureDirectory(paths.sourceSockets, sharedWithServer(users))
  await ensureFirewall(home)
  const renewed = await ensureServerCertificate({ home, directory: paths.tls, hosts: spec.hosts, readers: spec.uid })
  if (renewed && existsSync(paths.settings)) {
    for (const directory of [paths.directory, paths.pooler].filter(existsSync)) requestReload(directory)
  }
  const published = await publishedAddresses(spec.listen, spec.port)
  const outer = { listen: spec.listen, socketDirectory: paths.sockets }
  const { fixed, reloadable } = splitSettings(
    settingsOf(paths, id, spec, isConfined ? innerAddresses(published) : outer),
  )
  writeReloadableFiles(paths.directory, {
    [paths.settings]: renderSettings(reloadable),
    [paths.access]: renderAccess(spec),
    [paths.identities]: renderIdentities(users.trusted),
  })
  writeConnection(paths, spec)
  const command = [`${spec.toolchain.bin}/postgres`, ...serverArguments(paths, fixed)]
  const confinement = serverConfinement(paths, users, spec, published)
  const socket = `${paths.sockets}/.s.PGSQL.${spec.port}`
  await supervisor.ensureService(paths.service, {
    command: await confineService(home, command, {
      ...confinement,
      socket,
      // The server itself makes the second one where it is not confined.
      removed: [`${paths.data}/postmaster.pid`, `${socket}.lock`],
    }),
    stopSignal: 'SIGINT',
    stopTimeoutSeconds: stopSeconds,
    cgroup: spec.cgroup,
  })
  if (await lacksSocket(supervisor, paths, spec.port)) await supervisor.restartService(paths.service)
  if (needsReload(paths.directory)) await reload(supervisor, paths)
}

// Without namespaces the server creates its socket itself.
function prepareDirectories(paths: ClusterPaths, users: ClusterUsers, isConfined: boolean): void {
  const owner = isConfined ? { uid: users.server && 0, gid: users.server?.gid } : { uid: users.server?.uid }
  ensureDirectory(paths.sockets, { mode: isConfined ? 0o710 : 0o700, ...owner })
  ensureDirectory(paths.configuration, sharedWithServer(users))
  ensureFile(paths.lock, '', { mode: 0o600 })
}

/** PostgreSQL creates its socket only when it starts. If the file is lost, the platform and the pooler cannot connect. */
async function lacksSocket(supervisor: Supervisor, paths: ClusterPaths, port: number): Promise<boolean> {
  return !existsSync(`${paths.sockets}/.s.PGSQL.${port}`) && (await inspect(supervisor, paths)).is === 'ready'
}

// The configuration file is outside the data directory, so that a backup does not contain settings of its cluster.
function serverArguments(paths: ClusterPaths, fixed: Record<string, string>): string[] {
  const settings = { config_file: paths.settings, ...fixed }
  return ['-D', paths.data, ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])]
}

function settingsOf(
  paths: ClusterPaths,
  id: string,
  spec: ClusterSpec,
  { listen, socketDirectory }: InnerAddresses,
): Record<string, string> {
  return clusterSettings({
    id,
    plan: spec.plan,
    hostMemoryMb: Math.floor(totalmem() / 1024 / 1024),
    diskSizeGb: spec.diskSizeGb,
    listen,
    port: spec.port,
    socketDirectory,
    tlsDirectory: paths.tls,
    accessFile: paths.access,
    identityFile: paths.identities,
    hasStatements: hasLibrary(spec.toolchain, 'pg_stat_statements'),
    hasJit: hasLibrary(spec.toolchain, 'llvmjit'),
    overrides: { ...(spec.subscribes && subscriberSettings), ...spec.settings },
  })
}

// SIGHUP would terminate a server that is still starting. It may have read the files before or after they changed, so
// the note about the reload stays until the server is ready.
async function reload(supervisor: Supervisor, paths: ClusterPaths): Promise<void> {
  if ((await inspect(supervisor, paths)).is !== 'ready') return
  await supervisor.signalService(paths.service, 'SIGHUP')
  clearReload(paths.directory)
}

async function inspect(supervisor: Supervisor, paths: ClusterPaths): Promise<ClusterProcess> {
  if (!existsSync(paths.data)) return { is: 'absent' }
  const state = await supervisor.inspectService(paths.service)
  if (state.is !== 'up') return { is: 'stopped', log: supervisor.readLog(paths.service, logLines) }
  return { is: findReadyService(paths) === state.pid ? 'ready' : 'starting', pid: state.pid }
}

// Asking the supervisor starts a process, so it is asked only after the lock file has changed.
async function waitUntilReady(
  supervisor: Supervisor,
  paths: ClusterPaths,
  timeoutSeconds: number,
): Promise<ClusterProcess> {
  let state: ClusterProcess = await inspect(supervisor, paths)
  let knownPid = findReadyService(paths)
  await waitUntil(async () => {
    const pid = findReadyService(paths)
    if (pid !== undefined && pid !== knownPid) state = await inspect(supervisor, paths)
    knownPid = pid
    return state.is === 'ready'
  }, timeoutSeconds)
  return state.is === 'ready' ? state : inspect(supervisor, paths)
}

// du fails if a file disappears while it runs, but its sum is still good enough. It runs as the owner of the files.
async function measure(directory: string, uid: number | undefined): Promise<number> {
  const { stdout } = await run('sh', ['-c', 'du -sb "$1" 2>/dev/null || :', 'measure', directory], {
    timeoutSeconds: 600,
    uid,
  })
  const bytes = Number.parseInt(stdout, 10)
  if (Number.isNaN(bytes)) throw new Error(`measure ${directory}: du printed no size`)
  return bytes
}

async function remove({ home, supervisor }: PostgresParts, id: string): Promise<void> {
  const paths = clusterPaths(home, id)
  await supervisor.removeService(paths.poolerService)
  // The data is about to be deleted, so there is no reason to wait for a clean shutdown.
  await supervisor.stopService(paths.service, { timeoutSeconds: 1 })
  await supervisor.removeService(paths.service)
  await killOrphans(paths)
  moveToTrash(home, paths.sockets)
  moveToTrash(home, paths.sourceSockets)
  moveToTrash(home, paths.directory)
  emptyTrash(home)
}

/**
 * Kills backends that outlived their server. The supervisor cannot find them, because they have sessions of their own and
 * overwrite their environment; but the working directory of each is the data directory.
 */
async function killOrphans({ data }: ClusterPaths): Promise<void> {
  if (!existsSync(data)) return
  const directory = realpathSync(data)
  const isBackend = ({ pid, name }: Process) => name === 'postgres' && findWorkingDirectory(pid) === directory
  const gone = await killUntilGone(() => filterProcesses(isBackend))
  if (!gone) throw new Error(`kill the processes in ${data}: they survive SIGKILL`)
}
