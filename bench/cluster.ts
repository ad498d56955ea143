// Clusters over the public API, and the files and database rows that benchmarks read directly.
import { execFile, spawn } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { setTimeout as pause } from 'node:timers/promises'
import { promisify } from 'node:util'
import pg from 'pg'
import { endChild, until } from './child.ts'
import { connect, openPlatform, type Platform } from './platform.ts'
import type { Scope } from './scope.ts'

export type Major = '16' | '17'

export interface ClusterHost {
  scope: Scope
  platform: Platform
  home: string
  /** A connection to the state database. */
  state: pg.Client
}

export interface Cluster {
  id: string
  uid: number
  directPort: number
  poolerPort: number
  password: string
  bin: string
  tools: string
  directory: string
  data: string
  sockets: string
}

export interface Backup {
  id: string
  status: string
  size_bytes: number
  failure?: string
}

interface View {
  id: string
  status: string
  failure?: string
  restore?: { phase: string; verified: boolean }
  endpoints: { primary: Record<'direct' | 'pooler', { port: number }> }
}

export const user = 'fly-user'
export const database = 'fly-db'
const run = promisify(execFile)
const commandMillis = 180_000

export async function openClusterHost(
  scope: Scope,
  parent?: string,
  prepare?: (platform: Platform) => Promise<unknown>,
): Promise<ClusterHost> {
  const platform = await openPlatform(scope, parent)
  // A drill would run a restore during another measurement.
  platform.environment.BERTH_DRILL_INTERVAL = 'off'
  await prepare?.(platform)
  await platform.start()
  return { scope, platform, home: platform.environment.BERTH_HOME!, state: await connect(scope, platform) }
}

export async function call<T>({ url, token }: Platform, method: string, path: string, body?: object): Promise<T> {
  const response = await fetch(`${url}${path}`, {
    method,
    headers: { authorization: `Bearer ${token}`, ...(body && { 'content-type': 'application/json' }) },
    ...(body && { body: JSON.stringify(body) }),
    signal: AbortSignal.timeout(30_000),
  })
  const text = await response.text()
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
  return text === '' ? (undefined as T) : JSON.parse(text).data
}

export async function requestCluster({ platform }: ClusterHost, major: Major): Promise<string> {
  const body = { org_slug: 'personal', plan: 'basic', region: 'ams', pg_major_version: major }
  return (await call<View>(platform, 'POST', '/v1/postgres', body)).id
}

export async function waitUntilReady({ platform }: ClusterHost, id: string, seconds = 60): Promise<View> {
  let view = await getView(platform, id)
  const look = async () => {
    view = await getView(platform, id)
    if (view.status === 'failed') throw new Error(`cluster ${id} failed: ${view.failure}`)
    return view.status === 'ready'
  }
  await until(look, `cluster ${id} to be ready`, seconds)
  return view
}

function getView(platform: Platform, id: string): Promise<View> {
  return call<View>(platform, 'GET', `/v1/postgres/${id}`)
}

export async function countReady({ platform }: ClusterHost, ids: string[]): Promise<number> {
  const listed = await call<View[]>(platform, 'GET', '/v1/postgres?org_slug=personal')
  return listed.filter(({ id, status }) => ids.includes(id) && status === 'ready').length
}

export async function restorePhase({ platform }: ClusterHost, id: string): Promise<string | undefined> {
  return (await getView(platform, id)).restore?.phase
}

export async function isVerified({ platform }: ClusterHost, id: string): Promise<boolean> {
  return (await getView(platform, id)).restore?.verified ?? false
}

/** Throws unless both endpoints answer a query. */
export async function askBothEndpoints(host: ClusterHost, id: string): Promise<void> {
  const { primary } = (await getView(host.platform, id)).endpoints
  const password = await getPassword(host, id)
  await Promise.all([primary.direct, primary.pooler].map(({ port }) => askOnce(port, password)))
}

async function getPassword({ platform }: ClusterHost, id: string): Promise<string> {
  const path = `/v1/postgres/${id}/users/${user}/credentials`
  return (await call<{ password: string }>(platform, 'GET', path)).password
}

export async function askOnce(port: number, password: string): Promise<void> {
  const client = new pg.Client({ host: '127.0.0.1', port, user, database, password, connectionTimeoutMillis: 10_000 })
  await client.connect()
  try {
    await client.query('select 1')
  } finally {
    await client.end()
  }
}

export async function createCluster(host: ClusterHost, major: Major): Promise<Cluster> {
  const id = await requestCluster(host, major)
  await waitUntilReady(host, id)
  return getCluster(host, id)
}

async function getCluster(host: ClusterHost, id: string): Promise<Cluster> {
  const { primary } = (await getView(host.platform, id)).endpoints
  const { rows } = await host.state.query('select uid, toolchain from cluster where id = $1', [id])
  const directory = `${host.home}/clusters/${id}`
  return {
    id,
    uid: rows[0].uid,
    directPort: primary.direct.port,
    poolerPort: primary.pooler.port,
    password: await getPassword(host, id),
    bin: rows[0].toolchain.bin,
    tools: rows[0].toolchain.tools,
    directory,
    data: `${directory}/data`,
    sockets: `${host.home}/run/${id}`,
  }
}

/** Waits for the removal of the files too, because it would slow down the next measurement. */
export async function removeCluster(host: ClusterHost, id: string): Promise<void> {
  await call(host.platform, 'DELETE', `/v1/postgres/${id}`)
  const trash = `${host.home}/trash`
  const isGone = async () => {
    const { rows } = await host.state.query('select state from cluster where id = $1', [id])
    if (!['deleted', 'purged'].includes(rows[0].state)) return false
    return !existsSync(trash) || readdirSync(trash).length === 0
  }
  await until(isGone, `cluster ${id} to be gone`, 60, 20)
}

export async function connectAsSuperuser(scope: Scope, cluster: Cluster): Promise<pg.Client> {
  const client = new pg.Client({ host: cluster.sockets, port: cluster.directPort, user: 'postgres', database })
  client.on('error', () => {}) // the cluster stops before this connection is closed
  await client.connect()
  scope.defer(() => client.end())
  return client
}

export async function listBackups({ platform }: ClusterHost, id: string): Promise<Backup[]> {
  return call<Backup[]>(platform, 'GET', `/v1/postgres/${id}/backups`)
}

export async function startBackup({ platform }: ClusterHost, id: string): Promise<void> {
  await call(platform, 'POST', `/v1/postgres/${id}/backups`, {})
}

/** Returns the newest backup once it is completed. */
export async function waitForBackup(host: ClusterHost, id: string): Promise<Backup> {
  let newest: Backup | undefined
  const look = async () => {
    newest = (await listBackups(host, id))[0]
    if (newest?.status === 'failed') throw new Error(`backup of ${id} failed: ${newest.failure}`)
    return newest?.status === 'completed'
  }
  await until(look, `backup of ${id} to be completed`, 120, 20)
  return newest!
}

export function backupDirectory({ home }: ClusterHost, { id }: Cluster, backup: Backup): string {
  return `${home}/repository/${id}/backups/${backup.id}/data`
}

/** Fills the database with about 15 MB per unit of the pgbench scale. */
export async function fill({ tools, directPort, password }: Cluster, scale: number): Promise<void> {
  const args = ['-i', '-q', '-s', String(scale), ...clientArguments(directPort)]
  await run(`${tools}/pgbench`, args, { env: clientEnvironment(password), timeout: commandMillis })
}

/** Returns read-only transactions per second. */
export function queryRate(cluster: Cluster, port: number, seconds: number): Promise<number> {
  return transactionRate(cluster, port, seconds, ['-S'])
}

/** Returns transactions per second; by default they write. */
export async function transactionRate(cluster: Cluster, port: number, seconds: number, script: string[] = []) {
  const args = [...script, '-n', '-c', '8', '-j', '2', '-T', String(seconds), ...clientArguments(port)]
  const options = { env: clientEnvironment(cluster.password), timeout: (seconds + 30) * 1000 }
  const { stdout } = await run(`${cluster.tools}/pgbench`, args, options)
  return Number(/^tps = ([\d.]+)/m.exec(stdout)![1])
}

export interface WriteLoad {
  /** The transactions in each second, and the time at its end. */
  seconds: { at: number; rate: number }[]
  stop(): Promise<void>
}

const longestLoadSeconds = 90

/** Runs the default pgbench script until it is stopped. */
export function startWriteLoad(scope: Scope, cluster: Cluster): WriteLoad {
  const args = ['-n', '-c', '4', '-j', '2', '-P', '1', '-T', String(longestLoadSeconds)]
  const child = spawn(`${cluster.tools}/pgbench`, [...args, ...clientArguments(cluster.directPort)], {
    env: clientEnvironment(cluster.password),
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const stop = () => endChild(child, 'SIGTERM')
  scope.defer(stop)
  const seconds: WriteLoad['seconds'] = []
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    for (const [, rate] of text.matchAll(/progress: [\d.]+ s, ([\d.]+) tps/g)) {
      seconds.push({ at: performance.now(), rate: Number(rate) })
    }
  })
  return { seconds, stop }
}

function clientArguments(port: number): string[] {
  return ['-h', '127.0.0.1', '-p', String(port), '-U', user, database]
}

// Neither side uses TLS, because the manually started server has no certificate.
function clientEnvironment(password: string): NodeJS.ProcessEnv {
  return { PATH: process.env.PATH, PGPASSWORD: password, PGSSLMODE: 'disable' }
}

/** Flushes pending writes, which would slow down the next measurement. */
export async function settle({ home }: Pick<ClusterHost, 'home'>): Promise<void> {
  await run('sync', ['-f', home], { timeout: commandMillis })
  await pause(200)
}

/** Returns seconds. */
export async function timeProgram(program: string, args: string[]): Promise<number> {
  const started = performance.now()
  await run(program, args, { timeout: commandMillis, maxBuffer: 2 ** 26 })
  return (performance.now() - started) / 1000
}
