import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, inject } from 'vitest'
import { type Database, openDatabase } from '../../src/store/db.ts'
import { until } from './until.ts'

declare module 'vitest' {
  interface ProvidedContext {
    server: pg.ClientConfig
    /** A home whose `toolchain` and `sandbox-base` other homes can link to. */
    preparedHome: string
  }
}

export const templateDatabase = 'berth_template'
/** The role of the edge, which has the rights of the edge in every copy of the template. */
export const edgeUser = 'berth_edge'

/** Provides a separate database for one test file, copied from a migrated template in milliseconds. */
export function useDatabase(): { db: Database; config: pg.ClientConfig } {
  const handle = {} as { db: Database; config: pg.ClientConfig }
  const name = `test_${randomBytes(6).toString('hex')}`
  beforeAll(async () => {
    await admin(`create database ${name} template ${templateDatabase} strategy file_copy`)
    // The timeout is generous, so that a slow connection on a busy host does not look like an unavailable database.
    handle.config = { ...inject('server'), database: name, connectionTimeoutMillis: 30_000 }
    handle.db = openDatabase(handle.config)
  })
  afterAll(async () => {
    await handle.db?.close()
    await admin(`drop database if exists ${name} with (force)`)
  })
  return handle
}

async function admin(sql: string): Promise<void> {
  const client = new pg.Client({ ...inject('server'), database: 'postgres' })
  await client.connect()
  await client.query(sql).finally(() => client.end())
}

/** Waits until a statement in the database of this test waits for a lock, such as one that the test holds. */
export function untilOneWaits({ sql }: { sql(text: string): Promise<unknown[]> }): Promise<void> {
  const waiting = `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
  return until(async () => (await sql(waiting)).length > 0)
}
