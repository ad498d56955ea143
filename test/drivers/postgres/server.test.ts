import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { isRoot, run } from '../../../src/drivers/host/process.ts'
import { readIdentifier } from '../../../src/drivers/postgres/identity.ts'
import { clusterPaths } from '../../../src/drivers/postgres/paths.ts'
import { ensureTools, hasExtension } from '../../../src/drivers/postgres/toolchain/tools.ts'
import { newId } from '../../../src/model/ids.ts'
import {
  ask,
  type ClusterBench,
  connect,
  flyUser,
  openBench,
  password,
  type TestCluster,
  untilReady,
} from '../../support/cluster.ts'
import { hostPid } from '../../support/confined.ts'
import {
  canRunAs,
  firstLine,
  isRunning,
  processesBelow,
  removeTemporaryHome,
  startProgram,
  temporaryDirectory,
} from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const nobody = 65_534
let bench: ClusterBench

beforeAll(async () => {
  bench = await openBench()
})
afterAll(() => bench?.remove())

describe.each(['16', '17'] as const)('PostgreSQL %s', (major) => {
  let cluster: TestCluster
  let port: number
  let id: string

  const admin = <R extends Record<string, unknown>>(sql: string, database = 'postgres') =>
    bench.postgres.query<R>(id, database, sql)

  beforeAll(async () => {
    cluster = await bench.startCluster(major)
    port = cluster.spec.port
    id = cluster.id
  })

  test('runs as a user of its own, with a socket that only its own users can reach', async () => {
    const paths = clusterPaths(bench.home, id)
    expect(statSync(paths.sockets).mode & 0o777).toBe(0o710)
    expect(statSync(paths.data).mode & 0o777).toBe(0o700)
    expect(statSync(`${paths.data}/PG_VERSION`).mode & 0o777).toBe(0o600)
    expect(statSync(paths.directory).mode & 0o777).toBe(0o711)
    if (!isRoot()) return
    const pid = await untilReady(bench.postgres, id)
    const owned = [paths.data, `${paths.data}/PG_VERSION`, `/proc/${hostPid(pid, 1)}`]
    expect(owned.map((path) => statSync(path).uid)).toEqual(owned.map(() => cluster.spec.uid))
    const ours = [paths.directory, paths.settings, paths.access, paths.identities, paths.sockets, paths.lock]
    expect(ours.map((path) => statSync(path).uid)).toEqual(ours.map(() => 0))
    const shared = [paths.sockets, `${paths.tls}/server.key`].map((path) => statSync(path))
    expect(shared.map(({ uid, gid }) => [uid, gid])).toEqual(shared.map(() => [0, cluster.spec.uid]))
    expect(shared[1]!.mode & 0o777).toBe(0o640)
  })

  test('has checksums, UTF-8 and a locale that does not depend on the C library', async () => {
    const [row] = await admin(
      `select current_setting('data_checksums') as checksums, pg_encoding_to_char(encoding) as encoding,
         datlocprovider::text as provider, datcollate as collate
       from pg_database where datname = 'fly-db'`,
    )
    expect(row).toEqual({ checksums: 'on', encoding: 'UTF8', provider: major === '16' ? 'c' : 'b', collate: 'C.UTF-8' })
  })

  test('runs with the settings of its plan, without errors', async () => {
    const names = ['shared_buffers', 'max_connections', 'wal_level', 'track_commit_timestamp', 'ssl', 'TimeZone']
    const rows = await admin(`select current_setting(name) as value from unnest('{${names}}'::text[]) as name`)
    expect(rows.map((row) => row.value)).toEqual(['192MB', '76', 'replica', 'on', 'on', 'UTC'])
    expect(await admin('select name, error from pg_file_settings where error is not null')).toEqual([])
    expect(await admin('select error from pg_hba_file_rules where error is not null')).toEqual([])
    expect(await admin('select name from pg_settings where pending_restart')).toEqual([])
    await ask(port, 'select 1')
    expect(await ask(port, 'select 1 as one from pg_stat_statements limit 1')).toEqual([{ one: 1 }])
  })

  test('applies changed settings by a reload or, if necessary, a restart', async () => {
    const pid = await untilReady(bench.postgres, id)
    const spec = { ...cluster.spec, settings: { work_mem: '7MB' } }
    await bench.postgres.ensureRunning(id, spec)
    await until(async () => (await admin('show work_mem'))[0]?.work_mem === '7MB')
    expect(await untilReady(bench.postgres, id)).toBe(pid)
    await bench.postgres.ensureRunning(id, { ...spec, settings: { ...spec.settings, shared_buffers: '64MB' } })
    expect(await untilReady(bench.postgres, id)).not.toBe(pid)
    expect(await admin('show shared_buffers')).toEqual([{ shared_buffers: '64MB' }])
  })

  test('rejects platform roles from the network, and any user without a password', async () => {
    for (const user of ['postgres', 'berth_pooler']) {
      await expect(ask(port, 'select 1', { user, password: 'x' })).rejects.toThrow('rejects connection')
    }
    await expect(ask(port, 'select 1', { password: 'wrong' })).rejects.toThrow('password authentication failed')
    await expect(bench.postgres.probe(flyUser(port))).resolves.toBeUndefined()
    await expect(bench.postgres.probe({ ...flyUser(port), password: 'x' })).rejects.toThrow('query 127.0.0.1')
  })

  test('confines tenants to their databases', async () => {
    const [row] = await ask(
      port,
      `select bool_or(rolsuper or rolcreaterole or rolreplication or rolbypassrls) as power,
         array_agg(rolname::text) filter (where rolcreatedb) as creators,
         bool_or(pg_has_role(oid, 'pg_execute_server_program', 'usage')) as programs,
         bool_or(pg_has_role(oid, 'pg_read_server_files', 'usage')) as files
       from pg_roles where rolname = any('{fly-user,schema_admin,writer,reader,berth_pooler}')`,
    )
    expect(row).toEqual({ power: false, creators: ['schema_admin'], programs: false, files: false })
    // The platform closes idle sessions, so the test keeps one open that the tenant can attack.
    const held = admin('select pg_sleep(60)').catch(() => undefined)
    const listed = `select 1 from pg_stat_activity where usename = 'postgres'`
    await until(async () => (await ask(port, listed)).length > 0)
    for (const attempt of [
      `select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postgres'`,
      `copy (select 1) to program 'id'`,
      `select pg_read_file('/etc/passwd')`,
      'create role another',
      'create database another owner postgres',
      `alter role postgres password 'x'`,
      'set session authorization postgres',
      'drop schema pg_berth cascade',
      `select pg_berth.lookup('fly-user')`,
      `create function pg_berth.mine() returns int language sql as 'select 1'`,
      `load 'dblink'; create extension dblink`,
    ]) {
      await expect(ask(port, attempt), attempt).rejects.toThrow(/permission denied|must be|access to library/)
    }
    await admin(
      `select pg_cancel_backend(pid) from pg_stat_activity where usename = 'postgres' and pid <> pg_backend_pid()`,
    )
    await held
    await expect(ask(port, 'create table t (id int)', { database: 'postgres' })).rejects.toThrow('permission denied')
    await expect(ask(port, 'select 1', { database: 'template1' })).rejects.toThrow('permission denied')
    await expect(ask(port, 'select 1', { replication: 'true' } as pg.ClientConfig)).rejects.toThrow()
  })

  test('gives each role its rights, including on new objects and those of other admins', async () => {
    await bench.addUser(cluster, 'second', 'schema_admin')
    await bench.addUser(cluster, 'w', 'writer')
    await bench.addUser(cluster, 'r', 'reader')
    await ask(port, 'create table early (id serial primary key, name text)')
    await ask(port, 'create schema later; create table later.things (id serial primary key, name text)', {
      user: 'second',
    })
    for (const table of ['early', 'later.things']) {
      await ask(port, `insert into ${table} (name) values ('a'); update ${table} set name = 'b'`, { user: 'w' })
      expect(await ask(port, `select name from ${table}`, { user: 'r' })).toEqual([{ name: 'b' }])
      await expect(ask(port, `insert into ${table} (name) values ('c')`, { user: 'r' })).rejects.toThrow(
        'permission denied',
      )
      await expect(ask(port, `drop table ${table}`, { user: 'w' })).rejects.toThrow('must be owner')
      await expect(ask(port, 'create table public.mine (id int)', { user: 'w' })).rejects.toThrow('permission denied')
    }
    await ask(port, 'alter table early add extra int; create index on early (name)', { user: 'second' })
    await ask(port, 'alter table later.things rename to stuff; drop table early; drop schema later cascade')
    expect(await bench.postgres.users.list(id)).toEqual([
      { name: 'fly-user', role: 'schema_admin' },
      { name: 'r', role: 'reader' },
      { name: 'second', role: 'schema_admin' },
      { name: 'w', role: 'writer' },
    ])
  })

  test('lets an admin end the sessions of others', async () => {
    const client = await connect(port, { user: 'w' })
    const { processID: pid } = client as pg.Client & { processID: number }
    const [row] = await ask(port, `select pg_terminate_backend(${pid}) as done`)
    expect(row).toEqual({ done: true })
    await expect(client.query('select 1')).rejects.toThrow()
  })

  test('accepts unusual user names and rejects impossible ones', async () => {
    const name = 'a"b; drop'
    await bench.postgres.users.create(id, { name, role: 'writer', password })
    expect(await ask(port, 'select current_user::text as name', { user: name })).toEqual([{ name }])
    const again = bench.postgres.users.create(id, { name, role: 'reader', password })
    await expect(again).rejects.toMatchObject({ code: 'conflict' })
    for (const [bad, code] of [
      ['a\0b', 'invalid'],
      ['', 'invalid'],
      ['x'.repeat(64), 'invalid'],
      ['public', 'bad_request'],
      ['postgres', 'bad_request'],
      ['pg_monitor', 'bad_request'],
    ] as const) {
      const attempt = bench.postgres.users.create(id, { name: bad, role: 'reader', password })
      await expect(attempt, bad).rejects.toMatchObject({ code })
    }
    await bench.postgres.users.drop(id, name)
    expect(await bench.postgres.users.find(id, name)).toBeUndefined()
    await bench.postgres.users.drop(id, name) // may be repeated
    await expect(bench.postgres.users.drop(id, 'postgres')).rejects.toMatchObject({ code: 'bad_request' })
  })

  test('drops a user and gives its objects in several databases to the admins', async () => {
    await bench.postgres.databases.create(id, 'second')
    await bench.addUser(cluster, 'leaving', 'schema_admin')
    const client = await connect(port, { user: 'leaving' })
    for (const database of ['fly-db', 'second']) {
      await ask(port, 'set role none; create schema left_behind; create table left_behind.t (id int)', {
        user: 'leaving',
        database,
      })
      await ask(port, `grant usage on schema left_behind to w`, { user: 'leaving', database })
    }
    await bench.postgres.users.drop(id, 'leaving')
    await expect(client.query('select 1')).rejects.toThrow()
    for (const database of ['fly-db', 'second']) await ask(port, 'drop schema left_behind cascade', { database })
    await bench.postgres.databases.drop(id, 'second')
  })

  test('revokes the rights of a role, even from open sessions', async () => {
    await bench.addUser(cluster, 'falling', 'schema_admin')
    const client = await connect(port, { user: 'falling' })
    await client.query('set role none; create table public.own (id int)')
    await bench.postgres.users.setRole(id, { name: 'falling', role: 'reader' })
    await expect(client.query('drop table own')).rejects.toThrow()
    await expect(ask(port, 'drop table own', { user: 'falling' })).rejects.toThrow('must be owner')
    await ask(port, 'drop table own')
    await expect(bench.postgres.users.setRole(id, { name: 'nobody', role: 'reader' })).rejects.toMatchObject({
      code: 'not_found',
    })
  })

  test('changes a password and ends sessions on request', async () => {
    await bench.addUser(cluster, 'p', 'reader')
    const client = await connect(port, { user: 'p' })
    await bench.postgres.users.setPassword(id, 'p', 'second')
    const knows = (password: string) => bench.postgres.users.hasPassword(id, 'p', password)
    expect([await knows('first'), await knows('second')]).toEqual([false, true])
    await client.query('select 1')
    await bench.postgres.users.setPassword(id, 'p', 'third', { killSessions: true })
    await expect(client.query('select 1')).rejects.toThrow()
    await ask(port, 'select 1', { user: 'p', password: 'third' })
    const [row] = await admin(
      `select rolpassword like 'SCRAM-SHA-256$4096:%' as scram from pg_authid where rolname = 'p'`,
    )
    expect(row).toEqual({ scram: true })
  })

  test('creates and drops databases', async () => {
    await bench.postgres.databases.create(id, 'shop "x"')
    expect(await bench.postgres.databases.list(id)).toEqual(['fly-db', 'shop "x"'])
    await expect(bench.postgres.databases.create(id, 'shop "x"')).rejects.toMatchObject({ code: 'conflict' })
    await expect(bench.postgres.databases.create(id, 'pgbouncer')).rejects.toMatchObject({ code: 'bad_request' })
    const client = await connect(port, { database: 'shop "x"' })
    await client.query('create table orders (id int)')
    await bench.postgres.databases.drop(id, 'shop "x"')
    await expect(client.query('select 1')).rejects.toThrow()
    await expect(bench.postgres.databases.drop(id, 'shop "x"')).rejects.toMatchObject({ code: 'not_found' })
    await expect(bench.postgres.databases.drop(id, 'postgres')).rejects.toMatchObject({ code: 'bad_request' })
    await bench.postgres.databases.create(id, 'pattern')
    await ask(port, 'alter database pattern is_template true')
    expect(await bench.postgres.databases.list(id)).toEqual(['fly-db', 'pattern'])
    await bench.postgres.databases.drop(id, 'pattern')
  })

  test('enables and disables extensions', async () => {
    const find = async (name: string) =>
      (await bench.postgres.extensions.list(id, 'fly-db')).find((extension) => extension.name === name)
    expect(await find('plpgsql')).toMatchObject({ system: true, installed: { schema: 'pg_catalog' } })
    expect(await find('file_fdw')).toBeUndefined()
    await bench.postgres.extensions.enable(id, 'fly-db', 'earthdistance', { schema: 'geo', createSchema: true })
    expect(await find('cube')).toMatchObject({ system: false, installed: { schema: 'geo' } })
    expect(await ask(port, 'select geo.earth()::int as radius')).toEqual([{ radius: 6378168 }])
    const refusals = [
      [() => bench.postgres.extensions.enable(id, 'fly-db', 'cube'), 'conflict'],
      [() => bench.postgres.extensions.enable(id, 'fly-db', 'nonsense'), 'not_found'],
      [() => bench.postgres.extensions.enable(id, 'fly-db', 'citext', { schema: 'missing' }), 'invalid'],
      [() => bench.postgres.extensions.enable(id, 'nowhere', 'citext'), 'not_found'],
      [() => bench.postgres.extensions.disable(id, 'fly-db', 'cube'), 'conflict'],
      [() => bench.postgres.extensions.disable(id, 'fly-db', 'citext'), 'not_found'],
      [() => bench.postgres.extensions.disable(id, 'fly-db', 'plpgsql'), 'bad_request'],
    ] as const
    for (const [attempt, code] of refusals) await expect(attempt()).rejects.toMatchObject({ code })
    await bench.postgres.extensions.disable(id, 'fly-db', 'cube', { cascade: true })
    await bench.postgres.extensions.enable(id, 'fly-db', 'hstore')
    expect(await ask(port, `select ('a=>1'::hstore -> 'a') as a`)).toEqual([{ a: '1' }])
  })

  test('rejects impossible database names instead of truncating or parsing them', async () => {
    const long = 'x'.repeat(63)
    await bench.postgres.databases.create(id, long)
    const names = ['', 'fly-db\0search_path\0public', 'x\0database\0postgres', `${long}y`, 'fly-db\ud800']
    for (const name of names) {
      const asked = bench.postgres.extensions.list(id, name)
      await expect(asked, JSON.stringify(name)).rejects.toMatchObject({ code: 'not_found' })
    }
    await bench.postgres.databases.drop(id, long)
  })

  test('reports a conflict to one of two concurrent creations', async () => {
    const outcomes = async (work: () => Promise<unknown>) => {
      const attempts = await Promise.allSettled(Array.from({ length: 4 }, work))
      return attempts.map((one) => (one.status === 'rejected' ? one.reason.code : 'made')).sort()
    }
    for (const round of [1, 2, 3]) {
      const made = await outcomes(() => bench.postgres.databases.create(id, `twin ${round}`))
      expect(made).toEqual(['conflict', 'conflict', 'conflict', 'made'])
      await bench.postgres.databases.drop(id, `twin ${round}`)
      const enabled = await outcomes(() => bench.postgres.extensions.enable(id, 'fly-db', 'ltree'))
      expect(enabled).toEqual(['conflict', 'conflict', 'conflict', 'made'])
      await bench.postgres.extensions.disable(id, 'fly-db', 'ltree')
    }
  })

  test('is immune to functions and settings of a tenant in its own queries', async () => {
    await bench.postgres.databases.create(id, 'trap')
    await ask(port, 'create schema evil', { database: 'trap' })
    await ask(
      port,
      `create function evil.boom(text, name) returns bool language plpgsql as $$ begin raise 'ran as %', current_user; end $$;
       create operator evil.= (leftarg = text, rightarg = name, function = evil.boom);
       create view evil.pg_available_extensions as select 'trap' as name;
       alter database trap set search_path = evil, pg_catalog;
       alter database trap set role = 'reader';
       alter database trap set default_transaction_read_only = on;
       alter database trap set local_preload_libraries = 'nowhere';
       alter database trap set statement_timeout = 1`,
      { database: 'trap' },
    )
    if (major === '17') await ask(port, 'alter database trap set transaction_timeout = 1')
    expect((await bench.postgres.extensions.list(id, 'trap')).length).toBeGreaterThan(20)
    await bench.postgres.extensions.enable(id, 'trap', 'citext')
    await bench.postgres.databases.drop(id, 'trap')
  })

  test('can be dumped and loaded into another cluster without an error', async () => {
    const tools = await ensureTools(cluster.spec.toolchain)
    const other = await bench.startCluster(major)
    await ask(
      port,
      `create schema app; create table app.item (id serial primary key, name text);
      insert into app.item (name) values ('kept'); create extension if not exists pgcrypto`,
    )
    const url = (at: number) => `host=127.0.0.1 port=${at} user=fly-user dbname=fly-db`
    const env = { PGPASSWORD: password }
    const { stdout } = await run(`${tools}/pg_dump`, ['-d', url(port)], { env })
    expect(stdout).not.toMatch(/berth|pg_stat_statements/)
    // PostgreSQL 17 writes this setting into every dump, and 16 does not know it.
    const input = stdout.replace('SET transaction_timeout = 0;', '')
    await run(`${tools}/psql`, ['-X', '-v', 'ON_ERROR_STOP=1', '-d', url(other.spec.port)], { env, input })
    expect(await ask(other.spec.port, 'select name from app.item')).toEqual([{ name: 'kept' }])
    await bench.postgres.remove(other.id)
  })

  test('restarts after its server is killed', async () => {
    await ask(port, 'create table kept (id int); insert into kept values (1)')
    const pid = await untilReady(bench.postgres, id)
    process.kill(pid, 'SIGKILL')
    await until(async () => {
      const state = await bench.postgres.inspect(id)
      return state.is === 'ready' && state.pid !== pid
    })
    expect(await ask(port, 'select id from kept')).toEqual([{ id: 1 }])
    expect(await bench.postgres.query(id, 'fly-db', 'select id from public.kept')).toEqual([{ id: 1 }])
  })

  test('restarts even if a backend of the killed server survives', async () => {
    const pid = await untilReady(bench.postgres, id)
    const [left] = await admin<{ pid: number }>(`select pid from pg_stat_activity where backend_type = 'checkpointer'`)
    const stopped = hostPid(pid, left!.pid)
    process.kill(stopped, 'SIGSTOP')
    process.kill(pid, 'SIGKILL')
    await until(async () => {
      const state = await bench.postgres.inspect(id)
      return state.is === 'ready' && state.pid !== pid
    })
    expect(await admin('select 1 as one')).toEqual([{ one: 1 }])
    await until(() => !isRunning(stopped))
  })

  test('restarts after its socket was removed', async () => {
    const pid = await untilReady(bench.postgres, id)
    await bench.postgres.closeConnections(id)
    rmSync(clusterPaths(bench.home, id).sockets, { recursive: true })
    await expect(admin('select 1')).rejects.toMatchObject({ code: 'unavailable' })
    await bench.postgres.ensureRunning(id, cluster.spec)
    expect(await untilReady(bench.postgres, id)).not.toBe(pid)
    expect(await admin('select 1 as one')).toEqual([{ one: 1 }])
  })

  test('reports the size of its data directory', async () => {
    expect(await bench.postgres.measure(id, cluster.spec.uid)).toBeGreaterThan(30_000_000)
  })
})

test('removes a cluster with a backend that outlives its server', async () => {
  const { id } = await bench.startCluster('17')
  const pid = await untilReady(bench.postgres, id)
  const [left] = await bench.postgres.query<{ pid: number }>(
    id,
    'postgres',
    `select pid from pg_stat_activity where backend_type = 'checkpointer'`,
  )
  const stopped = hostPid(pid, left!.pid)
  process.kill(stopped, 'SIGSTOP')
  await bench.postgres.remove(id)
  await until(() => ![pid, stopped].some(isRunning))
})

test('creates clusters with different system identifiers', async () => {
  const clusters = await Promise.all([bench.newCluster('17'), bench.newCluster('17')])
  await Promise.all(clusters.map(({ id, spec }) => bench.postgres.ensureData(id, spec)))
  const identifiers = clusters.map(({ id }) => readIdentifier(clusterPaths(bench.home, id).data))
  expect(new Set(identifiers).size).toBe(2)
  for (const { id } of clusters) await bench.postgres.remove(id)
})

test('goes through its lifecycle with repeatable operations', async () => {
  const { id, spec } = await bench.newCluster('17')
  const paths = clusterPaths(bench.home, id)
  expect(await bench.postgres.inspect(id)).toEqual({ is: 'absent' })
  await expect(bench.postgres.ensureRunning(id, spec)).rejects.toThrow('no data directory')
  // This is what a process leaves that was killed during the copy.
  mkdirSync(`${paths.directory}/.new~interrupted`, { recursive: true })
  await Promise.all([bench.postgres.ensureData(id, spec), bench.postgres.ensureData(id, spec)])
  const identifier = readIdentifier(paths.data)
  expect(await bench.postgres.inspect(id)).toEqual({ is: 'stopped', log: [] })
  await bench.postgres.ensureRunning(id, spec)
  await bench.postgres.ensureData(id, spec)
  const pid = await untilReady(bench.postgres, id)
  await bench.postgres.ensureRunning(id, spec)
  await bench.postgres.ensureRunning(id, spec)
  expect(await untilReady(bench.postgres, id)).toBe(pid)
  expect(readIdentifier(paths.data)).toBe(identifier)
  expect(await bench.postgres.query(id, 'postgres', 'select 1 as one')).toEqual([{ one: 1 }])
  await bench.postgres.stop(id)
  expect(await bench.postgres.inspect(id)).toMatchObject({ is: 'stopped' })
  // Another process writes the log, so the line may be late.
  await until(async () => {
    const stopped = await bench.postgres.inspect(id)
    return stopped.is === 'stopped' && stopped.log.join('\n').includes('database system is shut down')
  })
  await expect(bench.postgres.query(id, 'postgres', 'select 1')).rejects.toMatchObject({ code: 'unavailable' })
  await bench.postgres.ensureRunning(id, spec)
  await untilReady(bench.postgres, id)
  await bench.postgres.remove(id)
  await bench.postgres.remove(id)
  expect(await bench.postgres.inspect(id)).toEqual({ is: 'absent' })
  expect(bench.postgres.list()).not.toContain(id)
  expect([paths.directory, paths.sockets].filter((path) => existsSync(path))).toEqual([])
  expect(bench.supervisor.listServices().filter((name) => name.includes(id))).toEqual([])
  expect(processesBelow(paths.directory)).toEqual([])
  await until(() => readdirSync(`${bench.home.path}/trash`).length === 0)
})

test('reports a lock that blocks an operation, and succeeds after it is released', async () => {
  const cluster = await bench.startCluster('17')
  const { port } = cluster.spec
  await bench.addUser(cluster, 'owner', 'schema_admin')
  await ask(port, 'set role none; create table public.held (id int)', { user: 'owner' })
  const other = await connect(port)
  await other.query('begin; lock table held')
  const drop = () => bench.postgres.users.drop(cluster.id, 'owner')
  await expect(drop()).rejects.toMatchObject({ code: 'unavailable', message: expect.stringContaining('holds a lock') })
  await other.query('rollback')
  await drop()
  await other.end()
  await bench.postgres.remove(cluster.id)
})

test('reports why a server does not start', async () => {
  const { id, spec } = await bench.newCluster('17')
  await bench.postgres.ensureData(id, spec)
  await bench.postgres.ensureRunning(id, { ...spec, settings: { shared_buffers: '12 parsecs' } })
  await until(async () => {
    const state = await bench.postgres.inspect(id)
    return state.is === 'stopped' && state.log.join().includes('12 parsecs')
  })
  await bench.postgres.ensureRunning(id, spec)
  await untilReady(bench.postgres, id)
  await bench.postgres.remove(id)
})

test('does not restart when the client programs are unpacked after its start', async () => {
  const { id, spec } = await bench.newCluster('17')
  const later = { ...spec, toolchain: { ...spec.toolchain, tools: `${bench.home.path}/later/bin` } }
  await bench.postgres.ensureData(id, later)
  await bench.postgres.ensureRunning(id, later)
  const pid = await untilReady(bench.postgres, id)
  mkdirSync(later.toolchain.tools, { recursive: true })
  await bench.postgres.ensureRunning(id, later)
  expect(await untilReady(bench.postgres, id)).toBe(pid)
  await bench.postgres.remove(id)
})

test('starts after a reboot that left its lock file empty', async () => {
  const { id, spec } = await bench.startCluster('17')
  await bench.postgres.stop(id)
  writeFileSync(`${clusterPaths(bench.home, id).data}/postmaster.pid`, '')
  await bench.postgres.ensureRunning(id, spec)
  await untilReady(bench.postgres, id)
  await bench.postgres.remove(id)
})

test('rejects an invalid id before any change', () => {
  for (const id of ['', '../../etc', 'UPPERCASE0123456', `${newId()}x`]) {
    expect(() => clusterPaths(bench.home, id)).toThrow('not the id of a cluster')
  }
})

test('detects PostGIS in an installation', async () => {
  const { spec } = await bench.newCluster('17')
  const files = readdirSync(`${spec.toolchain.share}/extension`)
  expect(hasExtension(spec.toolchain, 'postgis')).toBe(files.includes('postgis.control'))
})

test('creates the template and the client programs once for concurrent processes', async () => {
  const path = temporaryDirectory()
  const { spec } = await bench.newCluster('17')
  const program = `
    import { openHome } from 'drivers/host/home.ts'
    import { ensureTools } from 'drivers/postgres/toolchain/tools.ts'
    import { ensureTemplate } from 'drivers/postgres/template.ts'
    import { ensureToolchain } from 'drivers/postgres/toolchain/toolchain.ts'
    const home = await openHome('${path}/h', { uidBase: 300000, registry: '${path}/registry' })
    const toolchain = await ensureToolchain('17', home, { configuredBin: '${spec.toolchain.bin}' })
    const made = [await ensureTemplate(toolchain, home), await ensureTools(toolchain)]
    console.log(JSON.stringify([...made, toolchain]))
  `
  try {
    const [first, second] = await Promise.all([firstLine(startProgram(program)), firstLine(startProgram(program))])
    expect(second).toBe(first)
    const [template, tools, toolchain] = JSON.parse(first!)
    expect(tools).toBe(toolchain.tools)
    expect(statSync(template).mode & 0o777).toBe(0o755)
    expect(readdirSync(`${path}/h/toolchain`).filter((entry) => entry.startsWith('.'))).toEqual([])
    const uid = isRoot() ? 300_001 : undefined
    const { stdout } = await run(`${tools}/psql`, ['--version'], { uid })
    expect(stdout).toContain('psql (PostgreSQL)')
  } finally {
    await removeTemporaryHome(path)
  }
})

test.runIf(canRunAs(nobody))('works for an ordinary user', async () => {
  const path = temporaryDirectory(nobody)
  const { spec, pooler } = await bench.newCluster('17')
  const program = `
    import { openHome } from 'drivers/host/home.ts'
    import { poolerDriver } from 'drivers/postgres/pooler/pooler.ts'
    import { postgresDriver } from 'drivers/postgres/server.ts'
    import { waitUntil } from 'drivers/../model/poll.ts'
    import { s6Supervisor } from 'drivers/s6/supervisor.ts'
    import { ensureToolchain } from 'drivers/postgres/toolchain/toolchain.ts'
    const home = await openHome('${path}/h', { uidBase: 300000, registry: '${path}/registry' })
    const supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
    await supervisor.ensureTree()
    const postgres = postgresDriver({ home, supervisor })
    const toolchain = await ensureToolchain('17', home, { configuredBin: '${spec.toolchain.bin}' })
    const spec = { ...${JSON.stringify({ ...spec, uid: undefined })}, toolchain }
    const id = 'ordinaryordinary'
    await postgres.ensureData(id, spec)
    await postgres.ensureRunning(id, spec)
    const ready = await waitUntil(async () => (await postgres.inspect(id)).is === 'ready', 60)
    const poolers = poolerDriver({ home, supervisor, postgres })
    await poolers.ensurePooler(id, ${JSON.stringify({ ...pooler, uid: undefined })})
    await postgres.users.setPassword(id, 'fly-user', '${password}')
    console.log(ready)
    await postgres.closeConnections(id)
  `
  try {
    expect(await firstLine(startProgram(program, nobody))).toBe('true')
    expect(await ask(spec.port, 'select 1 as one')).toEqual([{ one: 1 }])
    await until(() =>
      bench.postgres.probe(flyUser(pooler.port)).then(
        () => true,
        () => false,
      ),
    )
    expect(readFileSync(`${path}/h/clusters/ordinaryordinary/configuration/pg_hba.conf`, 'utf8')).toContain(
      'scram-sha-256',
    )
  } finally {
    await removeTemporaryHome(`${path}/h`)
    await removeTemporaryHome(path)
  }
})
