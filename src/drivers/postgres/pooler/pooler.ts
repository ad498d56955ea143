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
import { renderPooler } from './render.ts'
import { endPooledSessions } from './session.ts'

const reloadTimeoutSeconds = 2

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

/** SIGHUP is asynchronous. */
async function hasReloaded(paths: ClusterPaths, spec: PoolerSpec): Promise<boolean> {
  const rows = await queryConsole<{ key: string; value: string }>(paths, spec, 'show config').catch(() => [])
  return rows.some(({ key, value }) => key === 'pool_mode' && value === spec.poolMode)
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
