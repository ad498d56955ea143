import pg from 'pg'
import { BerthError, badRequest, unavailable } from '../model/errors.ts'
import { fromDatabase } from '../model/time.ts'

export type Query = Pick<pg.ClientBase, 'query'>

/** A query handle that is known to be inside a transaction. */
export type Tx = Query & { readonly inTransaction: true }

/** A read by key that waits for nobody: it is soon over, and takes no locks. */
export type Read = pg.QueryConfig & { name: string }

/** Answers each of the items, in their order, by one statement. It is the same function for all calls. */
export type Gathered<I, R> = (db: Query, items: I[]) => Promise<R[]>

export interface Db extends Query {
  /** Reads of all callers share a connection. */
  read<R extends pg.QueryResultRow>(statement: Read): Promise<R[]>
  /** Items of all callers that come while an earlier call is under way are done by one call; the answers are theirs. */
  gather<I, R>(run: Gathered<I, R>, item: I): Promise<R>
  /** Commits when the body returns, rolls back when it throws. Inside another transaction it is a savepoint. */
  transaction<R>(body: (tx: Tx) => Promise<R>): Promise<R>
}

export interface Database extends Db {
  pool: pg.Pool
  close(): Promise<void>
}

const timestamptz = 1184
const int8 = 20

const types: pg.CustomTypesConfig = {
  getTypeParser(oid: number, format?: 'text' | 'binary') {
    if (oid === timestamptz) return fromDatabase
    if (oid === int8) return Number // counts and identities stay far below 2^53
    return pg.types.getTypeParser(oid, format)
  },
} as pg.CustomTypesConfig

export function openDatabase(config: pg.PoolConfig): Database {
  const settings: pg.ClientConfig = {
    connectionTimeoutMillis: 2_000, // a database that is away is reported, not waited for
    // Statements are written for one plan; asking for a better one with each call costs more than it finds.
    options: '-c timezone=UTC -c datestyle=ISO -c plan_cache_mode=force_generic_plan',
    ...config,
    types,
  }
  const pool = new pg.Pool({
    max: 10,
    idleTimeoutMillis: 60_000,
    allowExitOnIdle: true,
    ...config,
    ...settings,
    pipeline: true, // statements of a transaction that do not wait for each other go at once
  })
  const reader = openReader(settings)
  // Without a listener a connection that the server closes would end the process, be it idle or in a transaction between
  // two statements; the next query reports it.
  pool.on('error', () => {})
  pool.on('connect', (client) => client.on('error', () => {}))
  const query = ((text: string, values?: unknown[]) => answered(pool.query(text, values))) as pg.Pool['query']
  return {
    pool,
    query,
    gather: openGathering({ query }),
    read: async <R extends pg.QueryResultRow>(statement: Read) => (await answered(reader.query<R>(statement))).rows,
    transaction: (body) => transaction(pool, body),
    async close() {
      await Promise.all([pool.end(), reader.close()])
    },
  }
}

/**
 * One connection with many statements under way. Both sides then wake up for several at once, and to wake up costs more
 * than a read by key does. A connection that is lost is replaced by the next read.
 */
function openReader(settings: pg.ClientConfig) {
  let opened: Promise<pg.Client> | undefined

  function open(): Promise<pg.Client> {
    const client = new pg.Client({ ...settings, pipeline: true })
    const opening = client.connect().then(() => client)
    const forget = () => {
      if (opened === opening) opened = undefined
    }
    client.on('error', forget)
    client.on('end', forget)
    opening.catch(forget)
    return opening
  }

  return {
    async query<R extends pg.QueryResultRow>(statement: Read): Promise<pg.QueryResult<R>> {
      opened ??= open()
      return (await opened).query<R>(statement)
    },
    async close(): Promise<void> {
      const client = await opened?.catch(() => undefined)
      await client?.end()
    },
  }
}

/** For `Gathered`: what was found for each of the items, by the position that a row tells, counted from 1. */
export function inOrder<R extends { position: number }>(items: unknown[], rows: R[]): (R | undefined)[] {
  const found = new Map(rows.map((row) => [row.position, row]))
  return items.map((_, index) => found.get(index + 1))
}

/** A statement for many costs little more than one for one: what is paid for is the round trip and the commit. */
function openGathering(db: Query): Db['gather'] {
  const gatherings = new Map<unknown, (item: unknown) => Promise<unknown>>()
  return <I, R>(run: Gathered<I, R>, item: I) => {
    if (!gatherings.has(run)) gatherings.set(run, gathering(db, run as Gathered<unknown, unknown>))
    return gatherings.get(run)!(item) as Promise<R>
  }
}

const mostGathered = 256

function gathering<I, R>(db: Query, run: Gathered<I, R>): (item: I) => Promise<R> {
  let waiting: { item: I; answer: PromiseWithResolvers<R> }[] = []
  let isRunning = false

  async function runAll(): Promise<void> {
    isRunning = true
    while (waiting.length > 0) {
      const now = waiting.slice(0, mostGathered)
      waiting = waiting.slice(mostGathered)
      try {
        const answers = await run(
          db,
          now.map(({ item }) => item),
        )
        for (const [i, { answer }] of now.entries()) answer.resolve(answers[i]!)
      } catch (err) {
        for (const { answer } of now) answer.reject(err)
      }
    }
    isRunning = false
  }

  return (item) => {
    const answer = Promise.withResolvers<R>()
    waiting.push({ item, answer })
    if (!isRunning) runAll()
    return answer.promise
  }
}

async function transaction<R>(pool: pg.Pool, body: (tx: Tx) => Promise<R>): Promise<R> {
  const client = await answered(pool.connect())
  let broken = false
  try {
    const [, result] = await Promise.all([client.query('begin'), body(client as unknown as Tx)])
    await client.query('commit')
    return result
  } catch (err) {
    await client.query('rollback').catch(() => {
      broken = true
    })
    throw translated(err)
  } finally {
    client.release(broken)
  }
}

/** For what is harmless to lose in a crash: the commit does not wait for the disk. */
export async function commitWithoutDisk(tx: Tx): Promise<void> {
  await tx.query('set local synchronous_commit = off')
}

/** The same transaction as a `Db`, for code that opens transactions of its own. */
export function joinTransaction(tx: Tx): Db {
  return {
    query: tx.query.bind(tx) as Query['query'],
    read: async <R extends pg.QueryResultRow>(statement: Read) => (await tx.query<R>(statement)).rows,
    gather: async (run, item) => (await run(tx, [item]))[0]!,
    async transaction(body) {
      await tx.query('savepoint inner_change')
      try {
        const result = await body(tx)
        await tx.query('release savepoint inner_change')
        return result
      } catch (err) {
        await tx.query('rollback to savepoint inner_change')
        throw err
      }
    },
  }
}

async function answered<R>(answer: Promise<R>): Promise<R> {
  try {
    return await answer
  } catch (err) {
    throw translated(err)
  }
}

// Shutting down, starting up, crashed, too many connections, or no room: all pass without a change of ours.
const passingStates = new Set(['57P01', '57P02', '57P03', '53100', '53300', '08000', '08003', '08006'])
const passingErrors = new Set(['ECONNREFUSED', 'ECONNRESET', 'ENOENT', 'EPIPE', 'ETIMEDOUT', 'EAGAIN'])
const passingMessages = /connection terminated|timeout exceeded when trying to connect|not queryable|client was closed/i

const notText = new Set(['22021', '22P05'])

function translated(err: unknown): unknown {
  if (!(err instanceof Error) || err instanceof BerthError) return err
  const code = (err as { code?: string }).code ?? ''
  if (notText.has(code)) return badRequest('text must not contain NUL characters')
  if (!passingStates.has(code) && !passingErrors.has(code) && !passingMessages.test(err.message)) return err
  return unavailable('the state database is unavailable; try again in a moment', err)
}
