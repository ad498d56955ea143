import pg from 'pg'
import { notFound, unavailable } from '../../../model/errors.ts'
import { readTextIfPresent } from '../../host/file.ts'
import type { Home } from '../../host/home.ts'
import { clusterPaths } from '../paths.ts'
import { superuser } from '../template.ts'
import { explainError } from './error.ts'
import { findNameProblem } from './quote.ts'

export type Row = Record<string, unknown>

/** Statements without values may be several at once, which then happen together or not at all. */
export type Query = <R extends Row = Row>(
  id: string,
  database: string,
  text: string,
  values?: unknown[],
) => Promise<R[]>

export interface Connections {
  query: Query
  /** For a question that is asked again and again. */
  watch: Query
  /** Ends the connections to one database or to all of a cluster. */
  close(id: string, database?: string): Promise<void>
}

const timeoutMs = 10_000
const connectTimeoutMs = 5_000
// Less than the first, so that whoever waits for a lock is told of it, and not that nobody answers.
const lockTimeoutMs = 5_000

/**
 * A connection costs the cluster a process with some megabytes, and more with every catalog that a question on it has
 * read. So those for questions of all kinds are soon closed, and the one that is kept is asked the same question only.
 */
const uses = {
  query: { idleTimeoutMillis: 500, max: 2 },
  watch: { idleTimeoutMillis: 3_000, max: 1 },
}
type Use = keyof typeof uses

/**
 * A tenant may give his database settings, which would hold for our sessions too, and we are superuser: with a search
 * path of his, our own words would mean what he likes. What a client asks for wins over what a database has.
 */
const ownSettings: Record<string, string> = {
  search_path: '',
  role: 'none',
  default_transaction_read_only: 'off',
  default_transaction_isolation: 'read\\ committed',
  idle_session_timeout: '0',
  // One that is not there would let nobody in.
  local_preload_libraries: '',
  session_replication_role: 'origin',
  standard_conforming_strings: 'on',
  // Verifiers of passwords are among our words, and tenants read statistics and logs.
  track_activities: 'off',
  'pg_stat_statements.track': 'none',
  log_min_error_statement: 'panic',
}

/** Those that older servers do not know. */
const newerSettings: Record<string, Record<string, string>> = { 17: { transaction_timeout: '0' } }

/** The options of a session of the superuser that no tenant has a say in. */
export function sessionOptions(major: string, limits: { statementMs: number; lockMs: number }): string {
  const timeouts = { statement_timeout: String(limits.statementMs), lock_timeout: String(limits.lockMs) }
  return Object.entries({ ...ownSettings, ...newerSettings[major], ...timeouts })
    .map(([name, value]) => `-c ${name}=${value}`)
    .join(' ')
}

/** Connections through the platform's socket, a few for each database in use, closed when idle. */
export function openConnections(home: Home): Connections {
  const pools = new Map<string, pg.Pool>()

  function poolFor(use: Use, id: string, database: string): pg.Pool {
    // Of no name PostgreSQL makes that of its superuser, it cuts a long one, and takes what follows a zero byte for settings.
    if (findNameProblem(database)) throw notFound(`Database "${database}" does not exist`)
    const key = `${id}/${findPort(home, id)}/${use}/${database}`
    const known = pools.get(key)
    if (known) return known
    const pool = openPool(home, id, database, use)
    pool.on('remove', () => {
      if (pool.totalCount > 0 || pool.waitingCount > 0 || pools.get(key) !== pool) return
      pools.delete(key)
      void pool.end()
    })
    pools.set(key, pool)
    return pool
  }

  function asking(use: Use): Query {
    return async <R extends Row>(id: string, database: string, text: string, values?: unknown[]): Promise<R[]> => {
      try {
        const result: pg.QueryResult<R> | pg.QueryResult<R>[] = await poolFor(use, id, database).query(text, values)
        return (Array.isArray(result) ? result.at(-1) : result)?.rows ?? []
      } catch (error) {
        throw explainError(error, `query database ${database} of cluster ${id}`)
      }
    }
  }

  return {
    query: asking('query'),
    watch: asking('watch'),
    async close(id, database) {
      const closing = [...pools].filter(([key]) => {
        const [owner, , , ...name] = key.split('/')
        return owner === id && (database === undefined || name.join('/') === database)
      })
      for (const [key] of closing) pools.delete(key)
      await Promise.all(closing.map(([, pool]) => pool.end()))
    },
  }
}

function openPool(home: Home, id: string, database: string, use: Use): pg.Pool {
  const pool = new pg.Pool({
    host: clusterPaths(home, id).sockets,
    port: findPort(home, id),
    user: superuser,
    database,
    options: sessionOptions(findMajor(home, id), { statementMs: timeoutMs, lockMs: lockTimeoutMs }),
    application_name: 'berth',
    ...uses[use],
    connectionTimeoutMillis: connectTimeoutMs,
    // A little more than the server's own limit, which leaves the connection usable.
    query_timeout: timeoutMs + 1000,
    allowExitOnIdle: true,
  })
  // The server ended an idle connection, by a restart for example; the next query opens another.
  pool.on('error', () => undefined)
  return pool
}

function findMajor(home: Home, id: string): string {
  return readTextIfPresent(`${clusterPaths(home, id).data}/PG_VERSION`)?.trim() ?? ''
}

/** The fourth line of the server's lock file. The name of the socket ends with it. */
function findPort(home: Home, id: string): number {
  const port = readTextIfPresent(`${clusterPaths(home, id).data}/postmaster.pid`)?.split('\n')[3]
  if (!port) throw unavailable('The cluster is not running')
  return Number(port)
}

export interface ProbeTarget {
  host: string
  port: number
  user: string
  password: string
  database: string
  timeoutSeconds?: number
  /** The certificate of the authority that must have signed the server's; without it the connection is plain. */
  ca?: string
}

/** Asks a question as any client would, and throws unless there is an answer in time. */
export async function probe(target: ProbeTarget): Promise<void> {
  await askOnce(target, 'select 1')
}

/** In a session of its own. */
export async function askOnce<R extends Row>(
  { timeoutSeconds = 5, ca, ...target }: ProbeTarget,
  text: string,
): Promise<R[]> {
  const client = new pg.Client({
    ...target,
    ...(ca !== undefined && { ssl: { ca, servername: target.host } }),
    application_name: 'berth-probe',
    connectionTimeoutMillis: timeoutSeconds * 1000,
    query_timeout: timeoutSeconds * 1000,
  })
  client.on('error', () => undefined)
  try {
    await client.connect()
    return (await client.query<R>(text)).rows
  } catch (cause) {
    throw new Error(`ask ${target.host}:${target.port} a question`, { cause })
  } finally {
    // Not awaited: a server that does not answer does not say goodbye either.
    void client.end().catch(() => undefined)
  }
}
