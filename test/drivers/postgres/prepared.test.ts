import type pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { ask, type ClusterBench, connect, openBench, password, type TestCluster } from '../../support/cluster.ts'
import { until } from '../../support/until.ts'

let bench: ClusterBench

beforeAll(async () => {
  bench = await openBench()
})
afterAll(() => bench?.remove())

const changes = {
  password: `alter role stubborn password 'mine'`,
  setting: `alter role stubborn set role = 'none'`,
}

describe.each(['16', '17'] as const)('PostgreSQL %s', (major) => {
  let cluster: TestCluster
  let id: string
  let port: number

  beforeAll(async () => {
    cluster = await bench.startCluster(major)
    id = cluster.id
    port = cluster.spec.port
    await ask(port, 'create table number as select 1 as n')
  })

  const asUser = (sql: string) => ask(port, sql, { user: 'stubborn' })
  const listPrepared = async () =>
    (await bench.postgres.query(id, 'postgres', 'select gid from pg_prepared_xacts order by 1')).map(({ gid }) => gid)

  const askAboutSessions = async (what: string) =>
    bench.postgres.query(id, 'postgres', `select ${what} as seen from pg_stat_activity where usename = 'stubborn'`)
  const endSessions = () => askAboutSessions('pg_terminate_backend(pid)')
  const listSessions = async () => (await askAboutSessions('pid')).length

  describe('a user', () => {
    const operations = {
      'gets a new password': () => bench.postgres.users.setPassword(id, 'stubborn', password, { killSessions: true }),
      'gets another role': () => bench.postgres.users.setRole(id, { name: 'stubborn', role: 'writer' }),
      'is dropped': () => bench.postgres.users.drop(id, 'stubborn'),
    }

    beforeEach(() => bench.addUser(cluster, 'stubborn', 'reader'))
    afterEach(async () => {
      await bench.postgres.rollBackPrepared(id)
      await bench.postgres.users.drop(id, 'stubborn').catch(() => undefined)
    })

    describe.each(Object.entries(operations))('%s', (_what, operate) => {
      test.each(Object.values(changes))('while an open transaction of the user contains %s', async (change) => {
        const client: pg.Client = await connect(port, { user: 'stubborn' })
        await client.query(`begin; ${change}`)
        await operate()
        await expect(client.query('select 1')).rejects.toThrow()
      })

      test.each(Object.values(changes))('despite a prepared %s', async (change) => {
        await asUser(`begin; ${change}; prepare transaction 'his "own" \\ words'`)
        await expect(operate()).resolves.not.toBeInstanceOf(Error)
      })

      test.each(Object.values(changes))(
        'despite a transaction that was prepared as a group, with %s',
        async (change) => {
          await asUser(`begin; ${change}; set local role reader; prepare transaction 'of all'`)
          await expect(operate()).resolves.not.toBeInstanceOf(Error)
        },
      )
    })

    test('is dropped although new sessions keep starting', async () => {
      let isOut = false
      const comeBack = async () => {
        while (!isOut) {
          const client = await connect(port, { user: 'stubborn' }).catch(() => undefined)
          const ended = client && new Promise((resolve) => client.once('end', resolve))
          client?.query(`begin; ${changes.password}`).catch(() => undefined)
          await ended
        }
      }
      const sessions = Array.from({ length: 10 }, comeBack)
      try {
        await until(async () => (await listSessions()) > 5)
        await bench.postgres.users.drop(id, 'stubborn')
      } finally {
        isOut = true
        await endSessions()
        await Promise.all(sessions)
      }
    })

    test('is dropped despite a prepared transaction in a closed database, which stays closed', async () => {
      await bench.postgres.databases.create(id, 'closed')
      await ask(port, `begin; ${changes.setting}; prepare transaction 'far'`, { user: 'stubborn', database: 'closed' })
      await ask(port, 'alter database closed allow_connections false')
      await bench.postgres.users.drop(id, 'stubborn')
      expect(await listPrepared()).toEqual([])
      await expect(ask(port, 'select 1', { database: 'closed' })).rejects.toThrow('not currently accepting connections')
      await bench.postgres.databases.drop(id, 'closed')
    })

    test('takes along its prepared transactions in every database, and no others', async () => {
      await ask(port, `begin; insert into number values (2); prepare transaction 'of an admin'`)
      await asUser(`begin; lock table number in access share mode; prepare transaction 'his'`)
      await bench.postgres.users.setPassword(id, 'stubborn', password, { killSessions: true })
      expect(await listPrepared()).toEqual(['his', 'of an admin'])
      await bench.postgres.users.drop(id, 'stubborn')
      expect(await listPrepared()).toEqual(['of an admin'])
    })
  })

  test('clears passwords of unmanaged roles despite a prepared change of one', async () => {
    await bench.postgres.query(id, 'postgres', `create role stubborn login password 'old'`)
    await ask(port, `begin; ${changes.password}; prepare transaction 'of nobody'`, {
      user: 'stubborn',
      password: 'old',
    })
    await bench.postgres.users.clearUnmanagedPasswords(id)
    const [role] = await bench.postgres.query(
      id,
      'postgres',
      `select rolpassword from pg_authid where rolname = 'stubborn'`,
    )
    expect(role).toEqual({ rolpassword: null })
    await bench.postgres.query(id, 'postgres', 'drop role stubborn')
  })
})
