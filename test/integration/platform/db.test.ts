import pg from 'pg'
import { expect, test } from 'vitest'
import { useDatabase } from '../../support/db.ts'
import { until } from '../../support/until.ts'

const database = useDatabase()

/** Terminates all other sessions of the database and waits until they are gone. */
async function cutConnections(): Promise<void> {
  const client = new pg.Client(database.config)
  await client.connect()
  try {
    const others = 'from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()'
    await client.query(`select pg_terminate_backend(pid) ${others}`)
    await until(async () => (await client.query(`select ${others}`)).rowCount === 0)
  } finally {
    await client.end()
  }
}

test('reports the database as unavailable when a connection is lost between two statements of a transaction', async () => {
  const change = database.db.transaction(async (tx) => {
    await tx.query('select 1')
    await cutConnections()
    await tx.query('select 2')
  })
  await expect(change).rejects.toMatchObject({ code: 'unavailable' })
  expect((await database.db.query('select 3 as answer')).rows).toEqual([{ answer: 3 }])
  expect(await database.db.transaction(async (tx) => (await tx.query('select 4 as answer')).rows)).toEqual([
    { answer: 4 },
  ])
})

test('reports the database as unavailable when its disk is full', async () => {
  const full = `do $$ begin raise exception 'no room' using errcode = 'disk_full'; end $$`
  await expect(database.db.query(full)).rejects.toMatchObject({ code: 'unavailable' })
})
