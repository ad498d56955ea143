// What a user of clusters does, with a platform of its own and the client everybody has. Knows nothing of the source.
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

/** Both endpoints, and the words to get in. */
export async function accessOf(berth: Berth, id: string, user = 'fly-user'): Promise<Access> {
  const cluster = await berth.call('GET', `/v1/postgres/${id}`)
  const name = encodeURIComponent(user)
  const credentials = await berth.call('GET', `/v1/postgres/${id}/users/${name}/credentials`)
  if (credentials.status !== 200) throw new Error(`credentials of ${user}: ${JSON.stringify(credentials.body)}`)
  const { direct, pooler } = cluster.body.data.endpoints.primary
  return { direct, pooler, user, password: credentials.body.data.password }
}

/** A session. It may be ended from outside at any time, which its next query reports. */
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
    // A client that gives up half-way leaves the server waiting for the rest.
    ;(client as unknown as { connection: { stream: Socket } }).connection.stream.destroy()
    throw error
  }
  return client
}

/** Asks in a session of its own. */
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

/** True, or the sentence with which it was refused. */
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

/** The platform looks at the disk and the endpoints of a cluster every minute; this makes it look now. */
export async function lookClosely(berth: Berth, id: string): Promise<void> {
  const db = stateDatabase(berth)
  await db.connect()
  try {
    // The first look may have begun before; the second one has not, because there is one at a time.
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
  return Number(readFileSync(`${berth.home}/clusters/${id}/data/postmaster.pid`, 'utf8').split('\n')[0])
}

export function isRunning(pid: number): boolean {
  try {
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'))
  } catch {
    return false // it may end while it is being looked at
  }
}

/** Every process whose command line or working directory mentions the text, such as a home or the id of a cluster. */
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

/** One server for the cluster and no other: a session has the command line of its server before it has its own. */
export function untilOneServer(berth: Berth, id: string): Promise<void> {
  const servers = () => processesOf(`-D ${berth.home}/clusters/${id}/data`).filter(({ line }) => !/s6-/.test(line))
  return until(() => servers().length === 1)
}

/** Empty for a process that is gone meanwhile. */
function readLink(link: string): string {
  try {
    return readlinkSync(link)
  } catch {
    return ''
  }
}

/** The control groups of one platform, or of one of its clusters. */
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

/** Ends the platform and takes away what outlives its processes, whatever state the test left it in. */
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

/** Nothing of the cluster is on this machine any more. */
export async function expectNoTrace(berth: Berth, id: string, ports: Endpoint[]): Promise<void> {
  await until(() => processesOf(id).length === 0)
  for (const port of ports) expect(await canListen(port)).toBe(true)
  expect(existsSync(`${berth.home}/clusters/${id}`)).toBe(false)
  expect(existsSync(`${berth.home}/run/${id}`)).toBe(false)
  await until(() => controlGroups(berth, id).length === 0)
  // A backup that ran ends in its own time, when it sees that its cluster is gone.
  await until(() => readdirSync(`${berth.home}/tree`).every((name) => !name.includes(id)))
  await until(() => !existsSync(`${berth.home}/trash`) || readdirSync(`${berth.home}/trash`).length === 0)
}
