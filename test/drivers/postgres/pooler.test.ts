import { existsSync, readFileSync, statSync } from 'node:fs'
import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { findConfined } from '../../../src/drivers/confine/confine.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { uidStride } from '../../../src/drivers/postgres/users.ts'
import { ask, type ClusterBench, connect, openBench, type TestCluster } from '../../support/cluster.ts'
import { hostPid } from '../../support/confined.ts'
import { until } from '../../support/until.ts'

let bench: ClusterBench

const isServed = (port: number, database: string) =>
  ask(port, 'select 1', { database, connectionTimeoutMillis: 1000 }).then(
    () => true,
    () => false,
  )
const untilEnded = (client: pg.Client) => new Promise<void>((resolve) => client.once('end', resolve))

beforeAll(async () => {
  bench = await openBench()
})
afterAll(() => bench?.remove())

describe.each(['16', '17'] as const)('PostgreSQL %s', (major) => {
  let cluster: TestCluster
  let port: number

  beforeAll(async () => {
    cluster = await bench.startCluster(major)
    port = cluster.pooler.port
    await bench.startPooler(cluster)
  })

  test('accepts the default user and rejects a wrong password', async () => {
    expect(await ask(port, 'select session_user::text as name')).toEqual([{ name: 'fly-user' }])
    await expect(ask(port, 'select 1', { password: 'wrong' })).rejects.toThrow('authentication failed')
  })

  test.each([
    ['postgres', ''],
    ['postgres', 'postgres'],
    ['berth_pooler', ''],
    ['berth_pooler', 'berth_pooler'],
    ['schema_admin', ''],
    ['nobody at all', 'x'],
  ])('refuses %s with the password "%s"', async (user, guess) => {
    await expect(ask(port, 'select 1', { user, password: guess })).rejects.toThrow()
    await expect(ask(port, 'select 1', { user, password: guess, database: 'postgres' })).rejects.toThrow()
    await expect(ask(port, 'show users', { user, password: guess, database: 'pgbouncer' })).rejects.toThrow()
  })

  test('does not give tenants access to the console', async () => {
    await expect(ask(port, 'show users', { database: 'pgbouncer' })).rejects.toThrow()
    await bench.addUser(cluster, 'pgbouncer', 'schema_admin')
    await expect(ask(port, 'show users', { user: 'pgbouncer', database: 'pgbouncer' })).rejects.toThrow()
  })

  test('accepts a new user at once, whatever the name', async () => {
    for (const name of ['late', 'a"b; drop', `o'clock`, 'Üser name']) {
      await bench.addUser(cluster, name, 'reader')
      expect(await ask(port, 'select session_user::text as name', { user: name })).toEqual([{ name }])
    }
  })

  test('accepts a changed password at once and rejects the old one', async () => {
    await bench.addUser(cluster, 'changing', 'reader')
    await ask(port, 'select 1', { user: 'changing' })
    await bench.postgres.users.setPassword(cluster.id, 'changing', 'another one')
    expect(await ask(port, 'select 1 as one', { user: 'changing', password: 'another one' })).toEqual([{ one: 1 }])
    await expect(ask(port, 'select 1', { user: 'changing' })).rejects.toThrow('authentication failed')
  })

  test('rejects an expired password', async () => {
    await bench.addUser(cluster, 'expired', 'reader')
    await bench.postgres.query(cluster.id, 'postgres', `alter role expired valid until '2020-01-01'`)
    await expect(ask(port, 'select 1', { user: 'expired' })).rejects.toThrow()
  })

  test('runs admins as their group, even in a reused server session', async () => {
    const who = 'select current_user::text as acting, pg_backend_pid() as pid'
    await ask(port, 'create table pooled (id int)')
    // A session that is still being reset is not reused yet, so the next client may get another one.
    const seen = new Set<unknown>()
    let isSecond = false
    await until(async () => {
      const [session] = await ask(port, `${who}; set role none; ${who}`)
      const [next] = await ask(port, who)
      expect(next!.acting).toBe('schema_admin')
      isSecond = seen.add(session!.pid).has(next!.pid)
      return isSecond
    })
    await bench.addUser(cluster, 'other admin', 'schema_admin')
    await ask(port, 'alter table pooled add name text; drop table pooled', { user: 'other admin' })
  })

  test('applies a changed role to the next session', async () => {
    await bench.addUser(cluster, 'rising', 'reader')
    await expect(ask(port, 'create schema risen', { user: 'rising' })).rejects.toThrow('permission denied')
    await bench.postgres.users.setRole(cluster.id, { name: 'rising', role: 'schema_admin' })
    await ask(port, 'create schema risen', { user: 'rising' })
    await bench.postgres.users.setRole(cluster.id, { name: 'rising', role: 'reader' })
    await expect(ask(port, 'drop schema risen', { user: 'rising' })).rejects.toThrow('must be owner')
  })

  test.each(['another', 'a new "one"'])(
    'does not serve a database that does not exist, serves it once created, and allows its deletion',
    async (database) => {
      // PgBouncer 1.18 lets the first client of an unknown database wait.
      await expect(ask(port, 'select 1', { database, connectionTimeoutMillis: 1000 })).rejects.toThrow()
      await bench.postgres.databases.create(cluster.id, database)
      await until(() => isServed(port, database))
      const client = await connect(port, { database })
      expect((await client.query('select current_database()::text as name')).rows).toEqual([{ name: database }])
      await bench.postgres.databases.drop(cluster.id, database)
      await expect(client.query('select 1')).rejects.toThrow()
      await client.end().catch(() => undefined)
    },
  )

  test('serves a database that was created in SQL at once, and lets it be copied and dropped in SQL', async () => {
    const admin = await connect(port, { database: 'postgres' })
    try {
      await admin.query('create database made')
      const client = await connect(port, { database: 'made' })
      await client.query('create table kept as select 1 as id')
      await client.end()
      // PostgreSQL waits until the pooler has closed its idle connections.
      await admin.query('create database copied template made')
      expect(await ask(port, 'select id from kept', { database: 'copied' })).toEqual([{ id: 1 }])
      await admin.query('drop database made')
      await admin.query('drop database copied')
    } finally {
      await admin.end()
    }
  })

  test('serves a database whose owner revoked CONNECT from PUBLIC', async () => {
    const admin = (sql: string) => ask(cluster.spec.port, sql, { database: 'postgres' })
    await admin('create database closed')
    await admin('revoke all on database closed from public')
    await bench.postgres.ensureGrants(cluster.id)
    expect(await ask(port, 'select 1 as one', { database: 'closed' })).toEqual([{ one: 1 }])
    await bench.postgres.databases.drop(cluster.id, 'closed')
  })

  test('accepts the startup parameters of drivers', async () => {
    const parameters = {
      statement_timeout: 60_000,
      lock_timeout: 60_000,
      idle_in_transaction_session_timeout: 60_000,
      options: '-c search_path=elsewhere -c client_min_messages=warning',
    }
    expect(await ask(port, 'show search_path', parameters)).toEqual([{ search_path: '"$user", public' }])
    expect(await ask(cluster.spec.port, 'show search_path', parameters)).toEqual([{ search_path: 'elsewhere' }])
  })

  test('lets no client in transaction mode see the session of another one', async () => {
    await bench.startPooler(cluster, { poolMode: 'transaction' })
    const first = await connect(port)
    const second = await connect(port)
    try {
      await first.query(`set search_path = elsewhere; set statement_timeout = '1h'; select pg_advisory_lock(1);
        create temp table left_behind (id int); listen left_behind; set role none`)
      const { rows } = await second.query(
        `select current_setting('search_path') as path, current_setting('statement_timeout') as timeout,
           current_user::text as acting, pg_try_advisory_lock(1) as free, to_regclass('left_behind') is null as gone,
           (select count(*)::int from pg_listening_channels()) as channels`,
      )
      expect(rows).toEqual([
        { path: '"$user", public', timeout: '0', acting: 'schema_admin', free: true, gone: true, channels: 0 },
      ])
    } finally {
      await Promise.all([first.end(), second.end()])
      await bench.startPooler(cluster)
    }
  })

  test('rejects a dropped user', async () => {
    await bench.addUser(cluster, 'going', 'writer')
    const client = await connect(port, { user: 'going' })
    await client.query('select 1')
    await bench.postgres.users.drop(cluster.id, 'going')
    await expect(client.query('select 1')).rejects.toThrow()
    await expect(ask(port, 'select 1', { user: 'going' })).rejects.toThrow()
    await client.end().catch(() => undefined)
  })

  test.each(['session', 'transaction'] as const)(
    'ends the sessions of a user in %s mode, and no others',
    async (mode) => {
      const name = `ending in ${mode}`
      await bench.addUser(cluster, name, 'reader')
      await bench.startPooler(cluster, { poolMode: mode })
      const ca = readFileSync(`${bench.home.path}/ca/ca.crt`, 'utf8')
      const used = await connect(port, { user: name })
      const unused = await connect(port, { user: name })
      const encrypted = await connect(port, { user: name, ssl: { ca, servername: 'pg.test' } })
      const other = await connect(port)
      await Promise.all([used, encrypted, other].map((client) => client.query('select 1')))
      const ended = Promise.all([used, unused, encrypted].map(untilEnded))
      await bench.poolers.endSessions(cluster.id, cluster.pooler, { user: name })
      await ended
      expect((await other.query('select 1 as one')).rows).toEqual([{ one: 1 }])
      expect(await ask(port, 'select 1 as one', { user: name })).toEqual([{ one: 1 }])
      await other.end()
      await bench.startPooler(cluster)
    },
  )

  test('ends the sessions in a database', async () => {
    const [there, other] = await Promise.all([connect(port), connect(port)])
    await bench.poolers.endSessions(cluster.id, cluster.pooler, { database: 'another one' })
    expect((await there.query('select 1 as one')).rows).toEqual([{ one: 1 }])
    const ended = Promise.all([there, other].map(untilEnded))
    await bench.poolers.endSessions(cluster.id, cluster.pooler, { database: 'fly-db' })
    await ended
  })

  test('offers TLS with a certificate that clients can verify', async () => {
    const ca = readFileSync(`${bench.home.path}/ca/ca.crt`, 'utf8')
    for (const at of [port, cluster.spec.port]) {
      const checked = { host: 'localhost', ssl: { ca, servername: 'pg.test' } }
      expect(await ask(at, 'select 1 as one', checked)).toEqual([{ one: 1 }])
      await expect(ask(at, 'select 1', { ssl: { ca, servername: 'elsewhere' } })).rejects.toThrow(
        "does not match certificate's",
      )
      await expect(ask(at, 'select 1', { ssl: true })).rejects.toThrow('unable to verify')
    }
  })

  test('runs as a user of its own, with files that only the platform can change', async () => {
    const state = await bench.poolers.inspectPooler(cluster.id)
    if (state.is !== 'running') throw new Error('not running')
    const file = statSync(`${bench.home.path}/clusters/${cluster.id}/pooler/pgbouncer.ini`)
    expect(file.mode & 0o777).toBe(0o644)
    if (!isRoot()) return
    expect(file.uid).toBe(0)
    expect(statSync(`/proc/${hostPid(state.pid, 1)}`).uid).toBe(cluster.spec.uid! + uidStride)
  })
})

describe('one pooler', () => {
  let cluster: TestCluster
  let port: number

  beforeAll(async () => {
    cluster = await bench.startCluster('17')
    port = cluster.pooler.port
    await bench.startPooler(cluster)
  })

  const pid = async () => {
    const state = await bench.poolers.inspectPooler(cluster.id)
    return state.is === 'running' ? state.pid : 0
  }

  test('does not restart without a change', async () => {
    const before = await pid()
    await bench.startPooler(cluster)
    expect(await pid()).toBe(before)
  })

  test('makes clients wait on a full server and serves them once there is room', async () => {
    await bench.postgres.databases.create(cluster.id, 'busy')
    await bench.addUser(cluster, 'second', 'writer')
    const open = (from: number, count: number, change: pg.ClientConfig) =>
      Promise.all(Array.from({ length: count }, () => connect(from, change)))
    const direct = await open(cluster.spec.port, 40, {})
    const pooled = await open(port, 20, {})
    // PostgreSQL has 60 connections for tenants, and a few more while the platform does not use its own.
    const others: Promise<pg.Client>[] = Array.from({ length: 20 }, () =>
      connect(port, { user: 'second', database: 'busy' }),
    )
    const outcomes = Promise.allSettled(others)
    expect((await pooled[0]!.query('select 1 as one')).rows).toEqual([{ one: 1 }])
    for (const client of [...direct, ...pooled]) await client.end()
    await until(() => isServed(port, 'busy'), 10)
    for (const outcome of await outcomes) {
      if (outcome.status === 'fulfilled') await outcome.value.end()
      else expect(String(outcome.reason)).toMatch(/remaining connection slots|server login has been failing/)
    }
  })

  test('restarts after it is killed', async () => {
    const before = await pid()
    const program = hostPid(before, 1)
    process.kill(before, 'SIGKILL')
    await until(async () => ![0, before].includes(await pid()))
    // It dies a moment after the process that supervises it, and answers until then.
    await until(() => !existsSync(`/proc/${program}`))
    await bench.startPooler(cluster)
  })

  test('that does not answer is reported as unavailable', async () => {
    await until(async () => findConfined(await pid(), 'pgbouncer') !== undefined)
    const stopped = hostPid(await pid(), 1)
    process.kill(stopped, 'SIGSTOP')
    try {
      const ending = bench.poolers.endSessions(cluster.id, cluster.pooler, { user: 'fly-user' })
      await expect(ending).rejects.toMatchObject({ code: 'unavailable' })
    } finally {
      process.kill(stopped, 'SIGCONT')
    }
  })

  test('applies a new pool mode without ending sessions, and a new port with a restart', async () => {
    const before = await pid()
    await until(async () => {
      await bench.poolers.ensurePooler(cluster.id, { ...cluster.pooler, poolMode: 'transaction' })
      return !(await pendingReload())
    })
    expect(await pid()).toBe(before)
    // In transaction mode a client has a server session only during a transaction.
    const clients = await Promise.all(Array.from({ length: 5 }, () => connect(port)))
    const pids = new Set<unknown>()
    for (const client of clients) pids.add((await client.query('select pg_backend_pid() as pid')).rows[0].pid)
    expect(pids.size).toBe(1)
    for (const client of clients) await client.end()
    const other = await bench.newCluster('17')
    await bench.startPooler(cluster, { port: other.pooler.port })
    expect(await pid()).not.toBe(before)
  })

  const pendingReload = async () =>
    statSync(`${bench.home.path}/clusters/${cluster.id}/pooler/reload`, { throwIfNoEntry: false }) !== undefined

  test('is gone after its removal, which can be repeated', async () => {
    await bench.poolers.removePooler(cluster.id)
    expect(await bench.poolers.inspectPooler(cluster.id)).toEqual({ is: 'absent' })
    await bench.poolers.removePooler(cluster.id)
    await bench.poolers.endSessions(cluster.id, cluster.pooler, { user: 'fly-user' })
  })
})
