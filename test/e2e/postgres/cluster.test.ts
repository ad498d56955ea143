import { spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { readFileSync, statSync } from 'node:fs'
import { connect as connectSocket } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import {
  type Access,
  accessOf,
  ask,
  attempt,
  connect,
  createCluster,
  destroy,
  type Endpoint,
  lookClosely,
  readyCluster,
  untilReady,
  type Way,
  ways,
} from '../../support/client.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
const ids: Record<string, string> = {}
const isRoot = process.getuid?.() === 0

beforeAll(async () => {
  await berth.up()
  for (const major of ['16', '17']) ids[major] = await createCluster(berth, { pg_major_version: major })
  for (const id of Object.values(ids)) await untilReady(berth, id)
}, 300_000)

afterAll(() => destroy(berth))

/** Operations on the cluster of one major version, through the API and as a client. */
function clusterOf(major: string) {
  const path = () => `/v1/postgres/${ids[major]}`
  const call = (method: string, rest: string, body?: object) => berth.call(method, `${path()}/${rest}`, body)
  const name = (text: string) => encodeURIComponent(text)
  return {
    get id() {
      return ids[major]!
    },
    call,
    show: async () => (await berth.call('GET', path())).body.data,
    access: (user?: string) => accessOf(berth, ids[major]!, user),
    createUser: (username: string, role: string) => call('POST', 'users', { username, role }),
    deleteUser: (username: string) => call('DELETE', `users/${name(username)}`),
    setRole: (username: string, role: string) => call('PATCH', `users/${name(username)}`, { role }),
    rotate: (username: string, body: object = {}) => call('POST', `users/${name(username)}/rotate_password`, body),
    credentials: (username: string) => call('GET', `users/${name(username)}/credentials`),
    createDatabase: (database: string) => call('POST', 'databases', { name: database }),
    dropDatabase: (database: string) => call('DELETE', `databases/${name(database)}`),
    extensions: (database: string) => call('GET', `databases/${name(database)}/extensions`),
    enable: (database: string, body: object) => call('POST', `databases/${name(database)}/extensions`, body),
    disable: (database: string, extension: string, query = '') =>
      call('DELETE', `databases/${name(database)}/extensions/${name(extension)}${query}`),
    /** Creates a user and returns its credentials. */
    async user(username: string, role: string): Promise<Access> {
      const made = await call('POST', 'users', { username, role })
      expect(made).toMatchObject({ status: 201, body: { data: { username, role } } })
      return accessOf(berth, ids[major]!, username)
    },
  }
}

/** The startup message of a client. */
function startup(user: string): Buffer {
  const words = Buffer.from(`user\0${user}\0database\0fly-db\0\0`)
  const head = Buffer.alloc(8)
  head.writeInt32BE(words.length + 8, 0)
  head.writeInt32BE(196_608, 4)
  return Buffer.concat([head, words])
}

/** Reads the first response of a server to a startup message. */
function firstWord({ port }: Endpoint, user: string): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const socket = connectSocket(port, '127.0.0.1', () => socket.write(startup(user)))
    socket.setTimeout(30_000, () => socket.destroy(new Error('no word in 30 s')))
    socket.once('error', reject)
    socket.once('data', (data) => {
      socket.destroy()
      resolve(data as Buffer)
    })
  })
}

describe.each(['16', '17'])('a cluster of PostgreSQL %s', (major) => {
  const cluster = clusterOf(major)

  test('answers through both endpoints when it is ready', async () => {
    const access = await cluster.access()
    for (const way of ways) {
      const [row] = await ask(access, way, `select current_setting('server_version') as version, current_database()`)
      expect(row).toMatchObject({
        version: expect.stringMatching(new RegExp(`^${major}\\.`)),
        current_database: 'fly-db',
      })
    }
    expect(await cluster.show()).toMatchObject({ status: 'ready', pg_major_version: major, health: { status: 'ok' } })
  })

  test('has checksums and a system identifier of its own', async () => {
    const access = await cluster.access()
    expect(await ask(access, 'direct', 'show data_checksums')).toEqual([{ data_checksums: 'on' }])
    const [mine] = await ask(access, 'direct', 'select system_identifier from pg_control_system()')
    const other = await accessOf(berth, ids[major === '16' ? '17' : '16']!)
    const [theirs] = await ask(other, 'direct', 'select system_identifier from pg_control_system()')
    expect(mine!.system_identifier).not.toBe(theirs!.system_identifier)
  })

  test.each(ways)("offers TLS with a certificate of the platform's CA, and plain connections (%s)", async (way) => {
    const access = await cluster.access()
    const ca = readFileSync(`${berth.home}/ca/ca.crt`, 'utf8')
    for (const host of ['localhost', '127.0.0.1']) {
      const client = await connect(access, way, { host, ssl: { ca } })
      try {
        expect((client as unknown as { connection: { stream: unknown } }).connection.stream).toHaveProperty(
          'encrypted',
          true,
        )
        expect((await client.query('select 1 as one')).rows).toEqual([{ one: 1 }])
      } finally {
        await client.end()
      }
    }
    expect(
      await attempt(access, way, 'select 1', { ssl: { ca: readFileSync(import.meta.filename, 'utf8') } }),
    ).not.toBe(true)
    expect(await attempt(access, way, 'select 1', { ssl: true })).toMatch(/certificate/)
    expect(await attempt(access, way)).toBe(true)
  })

  test('authenticates with SCRAM only', async () => {
    const access = await cluster.access()
    for (const way of ways) {
      const word = await firstWord(access[way], 'fly-user')
      expect(word.subarray(0, 1).toString()).toBe('R')
      expect(word.readInt32BE(5)).toBe(10)
      expect(word.toString()).toContain('SCRAM-SHA-256')
      for (const password of ['', 'wrong', `${access.password} `, access.password.toLowerCase()]) {
        expect(await attempt(access, way, 'select 1', { password })).not.toBe(true)
      }
    }
    expect(await ask(access, 'direct', 'show password_encryption')).toEqual([{ password_encryption: 'scram-sha-256' }])
  })

  test('rejects platform roles from the network', async () => {
    const access = await cluster.access()
    for (const user of ['postgres', 'berth_pooler', 'schema_admin', 'writer', 'reader', 'nobody-at-all']) {
      for (const way of ways) {
        for (const database of ['fly-db', 'postgres', 'template1']) {
          const password = user === 'postgres' ? '' : access.password
          const change = { user, password, database, connectionTimeoutMillis: 2000 }
          expect(await attempt(access, way, 'select 1', change), `${user} ${way}`).not.toBe(true)
        }
      }
    }
    for (const way of ways) {
      for (const database of ['template0', 'template1', 'pgbouncer']) {
        // PgBouncer 1.18 lets the first client of a closed database wait.
        const closed = { database, connectionTimeoutMillis: 2000 }
        expect(await attempt(access, way, 'select 1', closed), `${database} ${way}`).not.toBe(true)
      }
    }
  })

  test.each([
    `select pg_read_file('/etc/passwd')`,
    `select pg_read_file('postgresql.auto.conf')`,
    `select pg_ls_dir('/')`,
    `select lo_import('/etc/passwd')`,
    `copy (select 1) to program 'id'`,
    `create temp table t (x text); copy t from program 'id'`,
    `create temp table t (x text); copy t from '/etc/passwd'`,
    `copy (select 1) to '/tmp/berth-tenant-wrote-this'`,
    `create role evil superuser`,
    `create role evil createrole`,
    `alter role "fly-user" superuser`,
    `alter role "fly-user" bypassrls`,
    `set role postgres`,
    `set session authorization postgres`,
    `grant postgres to "fly-user"`,
    `grant pg_execute_server_program to "fly-user"`,
    `alter system set archive_command = 'id'`,
    `alter role postgres password 'x'`,
    `alter role berth_pooler password 'x'`,
    `load '/tmp/evil.so'`,
    `create function f() returns int language c as '/tmp/evil.so', 'f'`,
    `create extension file_fdw`,
    `create extension adminpack`,
    `create extension plpython3u`,
    `create subscription s connection 'host=localhost' publication p`,
    `select * from pg_berth.lookup('fly-user')`,
    `update pg_authid set rolsuper = true`,
    `select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postgres'; select 1 / 0`,
    `select pg_reload_conf()`,
    `create tablespace t location '/tmp'`,
  ])('refuses the tenant %s', async (sql) => {
    const access = await cluster.access()
    for (const way of ways) {
      expect(await attempt(access, way, sql), way).not.toBe(true)
      expect(await attempt(access, way, `set role none; ${sql}`), `${way} as the user itself`).not.toBe(true)
    }
  })

  test('does not let the tenant connect through its Unix socket', async () => {
    const access = await cluster.access()
    const socket = `${berth.home}/run/${cluster.id}`
    const place = `host=${socket} port=${access.direct.port} user=postgres dbname=postgres`
    for (const extension of ['dblink', 'postgres_fdw']) {
      expect((await cluster.enable('fly-db', { name: extension })).status).toBe(204)
    }
    expect(await attempt(access, 'direct', `select * from dblink('${place}', 'select 1') t (x int)`)).toMatch(
      /password/,
    )
    expect(await attempt(access, 'direct', `select dblink_connect_u('${place}')`)).toMatch(/permission denied/)
    const client = await connect(access, 'direct')
    try {
      await client.query(
        `create server own foreign data wrapper postgres_fdw
         options (host '${socket}', port '${access.direct.port}', dbname 'postgres')`,
      )
      await client.query(`create user mapping for current_user server own options (user 'postgres')`)
      await client.query(`create foreign table stolen (rolname name) server own options (table_name 'pg_authid')`)
      await expect(client.query('select * from stolen')).rejects.toThrow(/password/)
      await expect(
        client.query(`alter user mapping for current_user server own options (add password_required 'false')`),
      ).rejects.toThrow(/superuser/)
    } finally {
      await client.query('drop server if exists own cascade').finally(() => client.end())
    }
    for (const extension of ['dblink', 'postgres_fdw']) await cluster.disable('fly-db', extension, '?force=true')
  })

  test.runIf(isRoot)('keeps its directories private', async () => {
    const own = statSync(`${berth.home}/clusters/${cluster.id}/data`).uid
    const other = statSync(`${berth.home}/clusters/${ids[major === '16' ? '17' : '16']}/data`).uid
    expect(new Set([own, other, 0, 65_534]).size).toBe(4)
    for (const uid of [65_534, other]) {
      for (const place of [
        `run/${cluster.id}`,
        'run/state',
        `clusters/${cluster.id}/data`,
        `clusters/${cluster.id}/tls/server.key`,
        'key',
        'token',
        'ca/ca.key',
      ]) {
        const read = spawnSync('cat', [`${berth.home}/${place}`], { uid, gid: uid })
        expect(read.stderr.toString(), place).toMatch(/Permission denied/)
        const list = spawnSync('ls', [`${berth.home}/${place}`], { uid, gid: uid })
        if (statSync(`${berth.home}/${place}`).isDirectory()) expect(list.status, place).not.toBe(0)
      }
    }
    // The user of the cluster cannot replace files that the platform reads either.
    const write = spawnSync('touch', [`${berth.home}/clusters/${cluster.id}/pg_hba.conf`], { uid: own, gid: own })
    expect(write.status).not.toBe(0)
  })

  describe('its users', () => {
    test('have the rights of their role, including on later objects of other users', async () => {
      const [anna, bert] = [await cluster.user('anna', 'schema_admin'), await cluster.user('bert', 'schema_admin')]
      const [writer, reader] = [await cluster.user('will', 'writer'), await cluster.user('rita', 'reader')]
      try {
        for (const [way, admin, colleague] of [
          ['direct', anna, bert],
          ['pooler', bert, anna],
        ] as [Way, Access, Access][]) {
          await ask(
            admin,
            way,
            `create table one (id serial primary key, x int);
             create schema shop; create table shop.two (id int generated always as identity, x int);
             create view seen as select * from one; create materialized view counted as select count(*) from one`,
          )
          for (const target of ['one', 'shop.two']) {
            expect(await attempt(writer, way, `insert into ${target} (x) values (1)`)).toBe(true)
            expect(await attempt(writer, way, `update ${target} set x = 2 where x = 1`)).toBe(true)
            expect(await ask(reader, way, `select x from ${target}`)).toEqual([{ x: 2 }])
            for (const sql of [`insert into ${target} (x) values (3)`, `delete from ${target}`, `truncate ${target}`]) {
              expect(await attempt(reader, way, sql)).toMatch(/permission denied/)
            }
            expect(await attempt(writer, way, `delete from ${target}`)).toBe(true)
            for (const stranger of [writer, reader]) {
              expect(await attempt(stranger, way, `alter table ${target} add y int`)).toMatch(/must be owner/)
              expect(await attempt(stranger, way, `drop table ${target}`)).toMatch(/must be owner/)
            }
            expect(await attempt(colleague, way, `alter table ${target} add z int`)).toBe(true)
          }
          expect(await attempt(reader, way, 'select * from seen, counted')).toBe(true)
          expect(await attempt(writer, way, `select nextval('one_id_seq')`)).toBe(true)
          for (const sql of ['create table mine (x int)', 'create schema mine', 'create view v as select 1']) {
            expect(await attempt(writer, way, sql)).toMatch(/permission denied/)
            expect(await attempt(reader, way, sql)).toMatch(/permission denied/)
          }
          expect(await attempt(colleague, way, 'drop schema shop cascade; drop table one cascade')).toBe(true)
        }
        const listed = (await cluster.call('GET', 'users')).body.data
        expect(listed).toEqual([
          { username: 'anna', role: 'schema_admin' },
          { username: 'bert', role: 'schema_admin' },
          { username: 'fly-user', role: 'schema_admin' },
          { username: 'rita', role: 'reader' },
          { username: 'will', role: 'writer' },
        ])
      } finally {
        for (const name of ['anna', 'bert', 'will', 'rita']) await cluster.deleteUser(name)
      }
    })

    test('have the same rights in new databases', async () => {
      const writer = await cluster.user('early', 'writer')
      expect((await cluster.createDatabase('later')).status).toBe(201)
      try {
        for (const way of ways) {
          await ask(await cluster.access(), way, 'create table t (x int)', { database: 'later' })
          expect(await attempt(writer, way, 'insert into t values (1)', { database: 'later' })).toBe(true)
          expect(await attempt(writer, way, 'drop table t', { database: 'later' })).toMatch(/must be owner/)
          await ask(await cluster.access(), way, 'drop table t', { database: 'later' })
        }
      } finally {
        await cluster.dropDatabase('later')
        await cluster.deleteUser('early')
      }
    })

    test('can connect at once, and after a rotation only with the new password', async () => {
      const fresh = await cluster.user('fresh', 'reader')
      try {
        for (const way of ways) expect(await attempt(fresh, way)).toBe(true)
        const sessions = await Promise.all(ways.map((way) => connect(fresh, way)))
        const rotated = await cluster.rotate('fresh')
        expect(rotated).toMatchObject({ status: 200, body: { data: { username: 'fresh' } } })
        const { password } = rotated.body.data
        expect(password).not.toBe(fresh.password)
        expect((await cluster.credentials('fresh')).body.data).toEqual({ username: 'fresh', password })
        for (const way of ways) {
          expect(await attempt(fresh, way)).not.toBe(true)
          expect(await attempt({ ...fresh, password }, way)).toBe(true)
        }
        for (const session of sessions) expect((await session.query('select 1 as one')).rows).toEqual([{ one: 1 }])
        expect((await cluster.rotate('fresh', { kill_sessions: true })).status).toBe(200)
        for (const session of sessions) {
          await expect(session.query('select 1')).rejects.toThrow()
          await session.end().catch(() => {})
        }
        for (const way of ways) expect(await attempt(await cluster.access('fresh'), way)).toBe(true)
      } finally {
        await cluster.deleteUser('fresh')
      }
    })

    test('lose their sessions at a transaction pooler when they are deleted or get a new password', async () => {
      const id = await readyCluster(berth, { pg_major_version: major, pool_mode: 'transaction' })
      const users = `/v1/postgres/${id}/users`
      for (const username of ['leaving', 'renewed']) {
        expect((await berth.call('POST', users, { username, role: 'reader' })).status).toBe(201)
      }
      const open = async (user?: string) => {
        const client = await connect(await accessOf(berth, id, user), 'pooler')
        await client.query('select 1')
        return { client, ended: new Promise((resolve) => client.once('end', resolve)) }
      }
      const [leaving, renewed, staying] = [await open('leaving'), await open('renewed'), await open()]
      expect((await berth.call('DELETE', `${users}/leaving`)).status).toBe(204)
      await leaving.ended
      expect((await berth.call('POST', `${users}/renewed/rotate_password`, { kill_sessions: true })).status).toBe(200)
      await renewed.ended
      expect((await staying.client.query('select 1 as one')).rows).toEqual([{ one: 1 }])
      await staying.client.end()
      expect((await berth.call('DELETE', `/v1/postgres/${id}`)).status).toBe(202)
    })

    test('are created once by ten concurrent requests, with the password that is shown', async () => {
      try {
        const replies = await Promise.all(Array.from({ length: 10 }, () => cluster.createUser('twin', 'writer')))
        expect(replies.map((reply) => reply.status).sort()).toEqual([201, ...Array(9).fill(409)])
        expect(await attempt(await cluster.access('twin'), 'direct')).toBe(true)
      } finally {
        await cluster.deleteUser('twin')
      }
    })

    test('have the password that is shown after ten concurrent rotations', async () => {
      await cluster.user('restless', 'reader')
      try {
        const replies = await Promise.all(Array.from({ length: 10 }, () => cluster.rotate('restless')))
        expect(replies.every((reply) => [200, 409].includes(reply.status))).toBe(true)
        for (const way of ways) expect(await attempt(await cluster.access('restless'), way)).toBe(true)
      } finally {
        await cluster.deleteUser('restless')
      }
    })

    test('have only the rights of a new role, and no session with the old ones', async () => {
      const moved = await cluster.user('moved', 'schema_admin')
      try {
        await ask(moved, 'direct', 'set role none; create table public.stays (x int)').catch(() => undefined)
        await ask(moved, 'direct', 'create table made (x int)')
        const session = await connect(moved, 'pooler')
        await session.query('select 1')
        expect((await cluster.setRole('moved', 'reader')).status).toBe(204)
        await expect(session.query('insert into made values (1)')).rejects.toThrow()
        await session.end().catch(() => {})
        for (const way of ways) {
          expect(await attempt(moved, way, 'insert into made values (1)')).toMatch(/permission denied/)
          expect(await attempt(moved, way, 'drop table made')).toMatch(/must be owner/)
          expect(await attempt(moved, way, 'select * from made')).toBe(true)
          expect(await attempt(moved, way, 'set role schema_admin')).toMatch(/permission denied/)
        }
        expect((await cluster.setRole('moved', 'writer')).status).toBe(204)
        for (const way of ways) expect(await attempt(moved, way, 'insert into made values (1)')).toBe(true)
      } finally {
        await ask(await cluster.access(), 'direct', 'drop table if exists made, stays')
        await cluster.deleteUser('moved')
      }
    })

    test('lose their sessions when they are deleted, but their objects stay', async () => {
      const leaver = await cluster.user('leaver', 'schema_admin')
      await ask(leaver, 'pooler', 'create table legacy as select 1 as x')
      const sessions = await Promise.all(ways.map((way) => connect(leaver, way)))
      for (const session of sessions) await session.query('select 1')
      expect(await cluster.deleteUser('leaver')).toMatchObject({ status: 204, body: '' })
      for (const session of sessions) {
        await expect(session.query('select 1')).rejects.toThrow()
        await session.end().catch(() => {})
      }
      for (const way of ways) expect(await attempt(leaver, way)).not.toBe(true)
      expect((await cluster.credentials('leaver')).status).toBe(404)
      expect((await cluster.deleteUser('leaver')).status).toBe(404)
      expect(await ask(await cluster.access(), 'direct', 'select x from legacy; drop table legacy')).toEqual([])
    })

    test.each([
      'a"b; drop',
      "x'y",
      'ünïcode',
      'With Space',
      '-- dash',
      'a/b',
      '%2F',
      '$$',
      '\\',
      'x'.repeat(63),
      '💥',
      ' ',
    ])('can be named %j', async (username) => {
      const access = await cluster.user(username, 'writer')
      try {
        for (const way of ways) {
          expect(await ask(access, way, 'select session_user::text as me')).toEqual([{ me: username }])
        }
        expect((await cluster.createUser(username, 'reader')).status).toBe(409)
        expect((await cluster.setRole(username, 'reader')).status).toBe(204)
        expect((await cluster.rotate(username)).status).toBe(200)
        expect(await attempt(await cluster.access(username), 'pooler')).toBe(true)
        expect((await cluster.call('GET', 'users')).body.data).toContainEqual({ username, role: 'reader' })
      } finally {
        expect((await cluster.deleteUser(username)).status).toBe(204)
      }
    })

    test('keep no rights of a former role, even if the change was interrupted', async () => {
      const fallen = await cluster.user('fallen', 'schema_admin')
      expect((await cluster.createDatabase('closed')).status).toBe(201)
      const owner = await cluster.access()
      try {
        await ask(fallen, 'direct', 'set role none; create table public.kept (x int)', { database: 'closed' })
        await ask(owner, 'direct', 'alter database closed allow_connections false')
        const refusal = { status: 422, body: { error: expect.stringMatching(/"closed" is not currently accepting/) } }
        expect(await cluster.setRole('fallen', 'reader')).toMatchObject(refusal)
        expect(await cluster.extensions('closed')).toMatchObject(refusal)
        expect((await cluster.call('GET', 'databases')).body.data).toContainEqual({ name: 'closed' })
        await ask(owner, 'direct', 'alter database closed allow_connections true')
        expect((await cluster.setRole('fallen', 'reader')).status).toBe(204)
        const drop = await attempt(fallen, 'direct', 'drop table kept', { database: 'closed' })
        expect(drop).toMatch(/must be owner/)
        const session = await connect(fallen, 'direct')
        expect((await cluster.setRole('fallen', 'reader')).status).toBe(204)
        expect((await session.query('select 1 as one')).rows).toEqual([{ one: 1 }])
        await session.end()
      } finally {
        await cluster.dropDatabase('closed')
        await cluster.deleteUser('fallen')
      }
    })

    test.each(['', 'x'.repeat(64), 'ü'.repeat(32), 'a\0b', 'a\ud800'])('may not be named %j', async (username) => {
      const refused = await cluster.createUser(username, 'reader')
      expect([400, 422]).toContain(refused.status)
      expect(refused.body.error).toMatch(/name|NUL|surrogate/)
      if (username.isWellFormed() && username !== '')
        expect([400, 404, 422]).toContain((await cluster.credentials(username)).status)
      expect((await cluster.call('GET', 'users')).body.data).toEqual([{ username: 'fly-user', role: 'schema_admin' }])
    })

    test.each(['postgres', 'flypgadmin', 'berth_pooler', 'schema_admin', 'writer', 'reader', 'pg_monitor', 'public'])(
      'cannot be the reserved %s',
      async (username) => {
        for (const reply of [
          await cluster.createUser(username, 'reader'),
          await cluster.setRole(username, 'reader'),
          await cluster.rotate(username),
          await cluster.credentials(username),
          await cluster.deleteUser(username),
        ]) {
          expect(reply).toMatchObject({ status: 400, body: { error: expect.stringContaining(username) } })
        }
      },
    )

    test('answer 404 if they do not exist', async () => {
      for (const reply of [
        await cluster.setRole('ghost', 'reader'),
        await cluster.rotate('ghost'),
        await cluster.credentials('ghost'),
        await cluster.deleteUser('ghost'),
      ]) {
        expect(reply).toMatchObject({ status: 404, body: { error: 'User not found' } })
      }
    })

    test.each([
      ['POST', 'users', {}, 'username'],
      ['POST', 'users', { username: 5, role: 'reader' }, 'username'],
      ['POST', 'users', { username: 'x' }, 'role'],
      ['POST', 'users', { username: 'x', role: 'owner' }, 'role'],
      ['PATCH', 'users/fly-user', {}, 'role'],
      ['PATCH', 'users/fly-user', { role: 'superuser' }, 'role'],
      ['POST', 'users/fly-user/rotate_password', { kill_sessions: 'yes' }, 'kill_sessions'],
      ['POST', 'databases', {}, 'name'],
      ['POST', 'databases', { name: 5 }, 'name'],
      ['POST', 'databases/fly-db/extensions', {}, 'name'],
    ])('%s %s with %j answers 422 and names the field', async (method, path, body, field) => {
      expect(await cluster.call(method, path, body)).toMatchObject({
        status: 422,
        body: { error: expect.stringContaining(field) },
      })
    })
  })

  describe('its databases', () => {
    test('are created, used and dropped, even with open sessions', async () => {
      const access = await cluster.access()
      expect((await cluster.call('GET', 'databases')).body).toEqual({ data: [{ name: 'fly-db' }] })
      expect(await cluster.createDatabase('shop')).toMatchObject({ status: 201, body: { data: { name: 'shop' } } })
      expect(await cluster.createDatabase('shop')).toMatchObject({
        status: 422,
        body: { error: expect.stringContaining('shop') },
      })
      expect((await cluster.call('GET', 'databases')).body).toEqual({ data: [{ name: 'fly-db' }, { name: 'shop' }] })
      const sessions = await Promise.all(ways.map((way) => connect(access, way, { database: 'shop' })))
      for (const session of sessions) await session.query('create table if not exists t (x int)')
      expect(await cluster.dropDatabase('shop')).toMatchObject({ status: 200, body: { data: { name: 'shop' } } })
      for (const session of sessions) {
        await expect(session.query('select 1')).rejects.toThrow()
        await session.end().catch(() => {})
      }
      for (const way of ways) {
        // PgBouncer 1.18 lets the first client of an unknown database wait.
        const gone = { database: 'shop', connectionTimeoutMillis: 2000 }
        expect(await attempt(access, way, 'select 1', gone)).not.toBe(true)
      }
      expect((await cluster.call('GET', 'databases')).body).toEqual({ data: [{ name: 'fly-db' }] })
      expect((await cluster.dropDatabase('shop')).status).toBe(404)
    })

    test.each(['a"b; drop', "x'y", 'ünïcode', 'With Space', 'a=b', '#x', '[x]', ';x', 'x'.repeat(63), '%'])(
      'can be named %j',
      async (name) => {
        expect(await cluster.createDatabase(name)).toMatchObject({ status: 201, body: { data: { name } } })
        try {
          expect((await cluster.call('GET', 'databases')).body.data).toContainEqual({ name })
          for (const way of ways) {
            expect(
              await ask(await cluster.access(), way, 'select current_database() as name', { database: name }),
              way,
            ).toEqual([{ name }])
          }
        } finally {
          expect((await cluster.dropDatabase(name)).status).toBe(200)
        }
      },
    )

    test.each(['x\n[pgbouncer]\nauth_type = any\n', 'x\r\ny', 'pgbouncer', '*', '\t'])(
      'named %j do not break the pooler',
      async (name) => {
        const made = await cluster.createDatabase(name)
        expect([201, 400, 422]).toContain(made.status)
        try {
          const access = await cluster.access()
          expect(await attempt(access, 'pooler')).toBe(true)
          expect(await attempt(access, 'pooler', 'select 1', { password: 'wrong' })).not.toBe(true)
          if (made.status === 201) expect(await attempt(access, 'direct', 'select 1', { database: name })).toBe(true)
        } finally {
          if (made.status === 201) expect((await cluster.dropDatabase(name)).status).toBe(200)
        }
      },
    )

    test('are dropped despite a connection that never completes its login', async () => {
      const { direct } = await cluster.access()
      const silent = connectSocket(direct.port, '127.0.0.1')
      try {
        await new Promise((resolve) => silent.write(startup('fly-user'), () => silent.once('data', resolve)))
        expect((await cluster.createDatabase('held')).status).toBe(201)
        expect((await cluster.dropDatabase('held')).status).toBe(200)
      } finally {
        silent.destroy()
        await cluster.dropDatabase('held')
      }
    })

    test('that have prepared transactions are not dropped, with a reason, but templates are', async () => {
      const owner = await cluster.access()
      expect((await cluster.createDatabase('needed')).status).toBe(201)
      const run = (sql: string) => ask(owner, 'direct', sql, { database: 'needed' })
      await run(`begin; create table t (x int); prepare transaction 'open'`)
      const error = expect.stringMatching(/prepared transactions/)
      expect(await cluster.dropDatabase('needed')).toMatchObject({ status: 422, body: { error } })
      await run(`rollback prepared 'open'`)
      await run('alter database needed is_template true')
      expect((await cluster.dropDatabase('needed')).status).toBe(200)
    })

    test('answer 404 for an impossible name in the path', async () => {
      for (const name of ['', 'fly-db%00search_path%00public', 'x'.repeat(64)]) {
        expect((await cluster.call('GET', `databases/${name}/extensions`)).status).toBe(404)
        const enabled = await cluster.call('POST', `databases/${name}/extensions`, { name: 'citext' })
        expect(enabled.status).toBe(404)
      }
    })

    test.each(['', 'x'.repeat(64), 'ü'.repeat(32), 'a\0b', 'a\ud800'])('may not be named %j', async (name) => {
      expect([400, 422]).toContain((await cluster.createDatabase(name)).status)
      expect((await cluster.call('GET', 'databases')).body.data).toEqual([{ name: 'fly-db' }])
    })

    test.each(['postgres', 'template0', 'template1'])('cannot be the reserved %s', async (name) => {
      for (const reply of [
        await cluster.createDatabase(name),
        await cluster.dropDatabase(name),
        await cluster.extensions(name),
        await cluster.enable(name, { name: 'citext' }),
        await cluster.disable(name, 'citext'),
      ]) {
        expect(reply).toMatchObject({ status: 400, body: { error: `database ${name} is reserved` } })
      }
    })

    test('can all be dropped without degrading the cluster', async () => {
      expect((await cluster.dropDatabase('fly-db')).status).toBe(200)
      try {
        const before = await cluster.show()
        await lookClosely(berth, cluster.id)
        expect((await cluster.call('GET', 'databases')).body).toEqual({ data: [] })
        expect((await cluster.show()).health).toEqual(before.health)
      } finally {
        expect((await cluster.createDatabase('fly-db')).status).toBe(201)
      }
      for (const way of ways) expect(await attempt(await cluster.access(), way)).toBe(true)
    })
  })

  describe('its extensions', () => {
    const installed = async (name: string) =>
      (await cluster.extensions('fly-db')).body.data.find((extension: { name: string }) => extension.name === name)

    test('are listed with their descriptions and versions', async () => {
      expect(await installed('pg_trgm')).toEqual({
        name: 'pg_trgm',
        description: expect.any(String),
        default_version: expect.stringMatching(/^\d/),
        system: false,
        installed: null,
      })
      expect(await installed('plpgsql')).toMatchObject({ system: true, installed: { schema: 'pg_catalog' } })
      for (const hidden of ['file_fdw', 'adminpack', 'postgis']) expect(await installed(hidden)).toBeUndefined()
    })

    test('are enabled once, work for the tenant, and are disabled', async () => {
      expect(await cluster.enable('fly-db', { name: 'pg_trgm' })).toMatchObject({ status: 204, body: '' })
      expect((await installed('pg_trgm')).installed).toMatchObject({ schema: 'public' })
      for (const way of ways) {
        expect(await ask(await cluster.access(), way, `select similarity('berth', 'berth') as s`)).toEqual([{ s: 1 }])
      }
      expect((await cluster.enable('fly-db', { name: 'pg_trgm' })).status).toBe(409)
      expect(await cluster.disable('fly-db', 'pg_trgm')).toMatchObject({ status: 204, body: '' })
      expect((await cluster.disable('fly-db', 'pg_trgm')).status).toBe(404)
    })

    test('with dependent objects are disabled only by force', async () => {
      const access = await cluster.access()
      const options = { name: 'citext', schema: 'tools', create_schema: true }
      expect((await cluster.enable('fly-db', { ...options, create_schema: false })).status).toBe(422)
      expect((await cluster.enable('fly-db', options)).status).toBe(204)
      await ask(access, 'direct', 'create table texts (x tools.citext)')
      const refused = await cluster.disable('fly-db', 'citext')
      expect(refused).toMatchObject({ status: 422, body: { error: expect.stringContaining('force=true') } })
      expect((await cluster.disable('fly-db', 'citext', '?force=true')).status).toBe(204)
      expect(await attempt(access, 'direct', 'select x from texts')).toMatch(/column "x" does not exist/)
      await ask(access, 'direct', 'drop table texts; drop schema tools')
    })

    test('that are unknown or forbidden answer 404, and system extensions stay', async () => {
      for (const name of ['nothing', 'file_fdw', 'a"b; drop']) {
        expect((await cluster.enable('fly-db', { name })).status).toBe(404)
        expect((await cluster.disable('fly-db', name)).status).toBe(404)
      }
      for (const reply of [
        await cluster.extensions('ghost'),
        await cluster.enable('ghost', { name: 'citext' }),
        await cluster.disable('ghost', 'citext'),
      ]) {
        expect(reply.status).toBe(404)
      }
      expect((await cluster.disable('fly-db', 'plpgsql')).status).toBe(400)
      expect(await cluster.enable('fly-db', { name: 'citext', create_schema: 'yes' })).toMatchObject({
        status: 422,
        body: { error: 'create_schema must be true or false' },
      })
      expect((await cluster.disable('fly-db', 'citext', '?force=maybe')).status).toBe(422)
      expect((await cluster.enable('fly-db', { name: 'citext', schema: 'pg_evil', create_schema: true })).status).toBe(
        422,
      )
    })
  })

  test('lists the attached apps', async () => {
    const app = `app-${major}-${randomBytes(3).toString('hex')}`
    await berth.call('POST', '/v1/apps', { app_name: app, org_slug: 'personal' })
    expect((await cluster.call('POST', 'attachments', { app_name: app })).status).toBe(201)
    expect((await cluster.call('POST', 'attachments', { app_name: app })).status).toBe(200)
    expect((await cluster.show()).attached_apps).toEqual([{ name: app }])
    await berth.call('DELETE', `/v1/apps/${app}`)
    expect((await cluster.show()).attached_apps).toEqual([])
  })

  test('reports its disk usage', async () => {
    await until(async () => (await cluster.show()).storage_used_bytes !== null)
    const { storage_used_bytes, storage_provisioned_bytes } = await cluster.show()
    expect(storage_provisioned_bytes).toBe(10 * 1024 ** 3)
    expect(storage_used_bytes).toBeGreaterThan(10_000_000)
    expect(storage_used_bytes).toBeLessThan(500_000_000)
  })
})
