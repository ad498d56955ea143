// Uses clusters as a tenant would, through the API of a real platform and with the pg client, without imports from src.
import { execFileSync } from 'node:child_process'
import { existsSync, globSync, readdirSync, readFileSync, readlinkSync, rmdirSync } from 'node:fs'
import { createServer, type Socket } from 'node:net'
import pg from 'pg'
import { expect } from 'vitest'
import type { Berth } from './berth.ts'
import { until } from './until.ts'

export interface Endpoint {
  host: string
  port: number
}

export interface Access {
  direct: Endpoint
  pooler: Endpoint
  user: string
  password: string
}

export const ways = ['direct', 'pooler'] as const
export type Way = (typeof ways)[number]

export async function createCluster(berth: Berth, extra: object = {}): Promise<string> {
  const made = await berth.call('POST', '/v1/postgres', { org_slug: 'personal', plan: 'basic', ...extra })
  if (made.status !== 201) throw new Error(`create a cluster: ${made.status} ${JSON.stringify(made.body)}`)
  return made.body.data.id
}

export async function untilReady(berth: Berth, id: string, seconds = 120): Promise<void> {
  await until(async () => {
    const { body } = await berth.call('GET', `/v1/postgres/${id}`)
    if (body.data?.status === 'failed') throw new Error(`the cluster failed: ${body.data.failure}`)
    return body.data?.status === 'ready'
  }, seconds)
}

export async function untilDeleted(berth: Berth, id: string, seconds = 60): Promise<void> {
  await until(async () => (await berth.call('GET', `/v1/postgres/${id}`)).status === 404, seconds)
}

export async function readyCluster(berth: Berth, extra: object = {}): Promise<string> {
  const id = await createCluster(berth, extra)
  await untilReady(berth, id)
  return id
}

/** Returns both endpoints and the credentials of a user. */
export async function accessOf(berth: Berth, id: string, user = 'fly-user'): Promise<Access> {
  const cluster = await berth.call('GET', `/v1/postgres/${id}`)
  const name = encodeURIComponent(user)
  const credentials = await berth.call('GET', `/v1/postgres/${id}/users/${name}/credentials`)
  if (credentials.status !== 200) throw new Error(`credentials of ${user}: ${JSON.stringify(credentials.body)}`)
  const { direct, pooler } = cluster.body.data.endpoints.primary
  return { direct, pooler, user, password: credentials.body.data.password }
}

/** Opens a session. Tests may terminate it on the server; the next query then fails. */
export async function connect(access: Access, way: Way, change: pg.ClientConfig = {}): Promise<pg.Client> {
  const { user, password } = access
  const client = new pg.Client({
    ...access[way],
    user,
    password,
    database: 'fly-db',
    connectionTimeoutMillis: 15_000,
    query_timeout: 15_000,
    ...change,
  })
  client.on('error', () => {})
  try {
    await client.connect()
  } catch (error) {
    // After a failed login pg leaves the socket open, and the server would keep waiting.
    ;(client as unknown as { connection: { stream: Socket } }).connection.stream.destroy()
    throw error
  }
  return client
}

/** Runs a query in a new session. */
export async function ask(
  access: Access,
  way: Way,
  sql: string,
  change: pg.ClientConfig = {},
): Promise<Record<string, unknown>[]> {
  const client = await connect(access, way, change)
  const result: pg.QueryResult | pg.QueryResult[] = await client.query(sql).finally(() => client.end())
  return (Array.isArray(result) ? result.at(-1)! : result).rows
}

/** Returns true, or the message of the error. */
export async function attempt(
  access: Access,
  way: Way,
  sql = 'select 1',
  change: pg.ClientConfig = {},
): Promise<true | string> {
  return ask(access, way, sql, change).then(
    () => true,
    (error: Error) => error.message,
  )
}

export function stateDatabase(berth: Berth): pg.Client {
  const client = new pg.Client({ host: `${berth.home}/run/state`, user: 'berth', database: 'berth' })
  client.on('error', () => {})
  return client
}

/** Makes the platform check the disk and the endpoints of a cluster now, instead of once a minute. */
export async function lookClosely(berth: Berth, id: string): Promise<void> {
  const db = stateDatabase(berth)
  await db.connect()
  try {
    // The first check may have begun earlier. The second one has not, because checks of one cluster do not overlap.
    for (let looks = 0; looks < 2; looks++) {
      await db.query('update cluster set quota_checked_at = null where id = $1', [id])
      await until(async () => {
        await db.query(`update work set run_at = now() where kind = 'cluster' and resource_id = $1`, [id])
        await db.query('notify work')
        const { rows } = await db.query('select quota_checked_at as looked from cluster where id = $1', [id])
        return rows[0].looked !== null
      })
    }
  } finally {
    await db.end()
  }
}

export function postmasterPid(berth: Berth, id: string): number {
  return Number(readFileSync(`${berth.home}/clusters/${id}/pid`, 'utf8'))
}

export function isRunning(pid: number): boolean {
  try {
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'))
  } catch {
    return false // the process may end during the check
  }
}

/** Lists processes whose command line or working directory contains the text, such as a home or a cluster id. */
export function processesOf(text: string): { pid: number; line: string }[] {
  const listing = execFileSync('ps', ['-eo', 'pid=,args='], { encoding: 'utf8' })
  const named = listing
    .split('\n')
    .filter((line) => line.includes(text))
    .map((line) => ({ pid: Number.parseInt(line, 10), line: line.trim() }))
  const inside = globSync('/proc/[0-9]*/cwd')
    .map((link) => ({ pid: Number(link.split('/')[2]), line: readLink(link) }))
    .filter(({ line }) => line.includes(text))
  return [...named, ...inside].filter(({ pid }) => pid !== process.pid && isRunning(pid))
}

/** Waits until there is one server process. A new backend briefly has the command line of its postmaster. */
export function untilOneServer(berth: Berth, id: string): Promise<void> {
  const server = /^\d+ \S*\/postgres -D /
  const servers = () => processesOf(`-D ${berth.home}/clusters/${id}/data`).filter(({ line }) => server.test(line))
  return until(() => servers().length === 1)
}

/** Returns an empty string if the process has ended. */
function readLink(link: string): string {
  try {
    return readlinkSync(link)
  } catch {
    return ''
  }
}

/** Lists the control groups of a platform, or of one of its clusters. */
export function controlGroups(berth: Berth, id = ''): string[] {
  const number = readFileSync(`${berth.home}/number`, 'utf8').trim()
  return globSync(`/sys/fs/cgroup/{,*/}berth-${number}-${id}*`)
}

export function canListen({ port }: Endpoint): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', () => resolve(false))
    server.listen({ host: '127.0.0.1', port, exclusive: true }, () => server.close(() => resolve(true)))
  })
}

/** Stops the platform in whatever state it is, and removes its control groups, which outlive its processes. */
export async function destroy(berth: Berth): Promise<void> {
  const groups = existsSync(`${berth.home}/number`) ? controlGroups(berth) : []
  await berth.destroy()
  for (const group of groups) {
    await until(() => {
      try {
        rmdirSync(group)
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'EBUSY') return false
      }
      return true
    })
  }
}

/** Expects that no process, port, file or control group of the cluster is left. */
export async function expectNoTrace(berth: Berth, id: string, ports: Endpoint[]): Promise<void> {
  await until(() => processesOf(id).length === 0)
  for (const port of ports) expect(await canListen(port)).toBe(true)
  expect(existsSync(`${berth.home}/clusters/${id}`)).toBe(false)
  expect(existsSync(`${berth.home}/run/${id}`)).toBe(false)
  await until(() => controlGroups(berth, id).length === 0)
  // A running backup ends later, when it notices that its cluster is deleted.
  await until(() => readdirSync(`${berth.home}/tree`).every((name) => !name.includes(id)))
  await until(() => !existsSync(`${berth.home}/trash`) || readdirSync(`${berth.home}/trash`).length === 0)
}
