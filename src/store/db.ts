import pg from 'pg'
import { fromDatabase } from '../model/time.ts'
import { type Batch, openBatching } from './batch.ts'
import { translateError, translatingErrors } from './db-error.ts'
import { openReader, type Read } from './reader.ts'

export type Query = Pick<pg.ClientBase, 'query'>

/** A query handle that is known to be inside a transaction. */
export type Tx = Query & { readonly inTransaction: true }

export interface Db extends Query {
  /** Runs the statement on a connection that the reads of all callers share. */
  read<R extends pg.QueryResultRow>(statement: Read): Promise<R[]>
  /** Runs the statement for the items of concurrent callers together, and returns the result for this item. */
  batch<I, R>(run: Batch<Query, I, R>, item: I): Promise<R>
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
    connectionTimeoutMillis: 2_000, // an unreachable database is reported, not waited for
    // All statements are written for one generic plan; custom plans cost more planning time than they save.
    options: '-c timezone=UTC -c datestyle=ISO -c plan_cache_mode=force_generic_plan',
    ...config,
    types,
  }
  const pool = openPool(config, settings)
  const reader = openReader(settings)
  const query = ((text: string, values?: unknown[]) => translatingErrors(pool.query(text, values))) as pg.Pool['query']
  return {
    pool,
    query,
    batch: openBatching<Query>({ query }),
    read: async <R extends pg.QueryResultRow>(statement: Read) =>
      (await translatingErrors(reader.query<R>(statement))).rows,
    transaction: (body) => transaction(pool, body),
    async close() {
      await Promise.all([pool.end(), reader.close()])
    },
  }
}

function openPool(config: pg.PoolConfig, settings: pg.ClientConfig): pg.Pool {
  const pool = new pg.Pool({
    max: 10,
    idleTimeoutMillis: 60_000,
    allowExitOnIdle: true,
    ...config,
    ...settings,
    pipeline: true, // independent statements of a transaction are sent without waiting for each other
  })
  // Without listeners, a connection that the server closes while it is idle or between two statements of a transaction
  // would end the process. The next query reports the error.
  pool.on('error', () => {})
  pool.on('connect', (client) => client.on('error', () => {}))
  return pool
}

async function transaction<R>(pool: pg.Pool, body: (tx: Tx) => Promise<R>): Promise<R> {
  const client = await translatingErrors(pool.connect())
  let isBroken = false
  try {
    const [, result] = await Promise.all([client.query('begin'), body(client as unknown as Tx)])
    await client.query('commit')
    return result
  } catch (err) {
    await client.query('rollback').catch(() => {
      isBroken = true
    })
    throw translateError(err)
  } finally {
    client.release(isBroken)
  }
}

/** Makes the commit not wait for the disk, for changes that may be lost in a crash. */
export async function commitWithoutDisk(tx: Tx): Promise<void> {
  await tx.query('set local synchronous_commit = off')
}

/** Presents a transaction as a `Db`, for code that opens transactions itself. */
export function joinTransaction(tx: Tx): Db {
  return {
    query: tx.query.bind(tx) as Query['query'],
    read: async <R extends pg.QueryResultRow>(statement: Read) => (await tx.query<R>(statement)).rows,
    batch: async (run, item) => (await run(tx, [item]))[0]!,
    async transaction(body) {
      await tx.query('savepoint inner_change')
      try {
        const result = await body(tx)
        await tx.query('release savepoint inner_change')
        return result
      } catch (err) {
        await tx.query('rollback to savepoint inner_change')
        throw translateError(err)
      }
    },
  }
}
