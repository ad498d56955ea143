import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ask, type ClusterBench, openBench, type TestCluster } from '../../support/cluster.ts'

let bench: ClusterBench

beforeAll(async () => {
  bench = await openBench()
})
afterAll(() => bench?.remove())

describe.each(['16', '17'] as const)('PostgreSQL %s', (major) => {
  let cluster: TestCluster

  beforeAll(async () => {
    cluster = await bench.startCluster(major)
    for (const role of ['writer', 'reader'] as const) await bench.addUser(cluster, `a ${role}`, role)
  })

  const as = (user: string, sql: string, database = 'fly-db') => ask(cluster.spec.port, sql, { user, database })
  const admin = (sql: string, database = 'postgres') => as('fly-user', sql, database)
  const platform = (sql: string, database = 'postgres') => bench.postgres.query(cluster.id, database, sql)

  async function expectShared(database: string): Promise<void> {
    await admin('create schema app; create table app.item (id serial)', database)
    await as('a writer', 'insert into app.item default values', database)
    expect(await as('a reader', 'select id from app.item', database)).toEqual([{ id: 1 }])
    for (const sql of ['select lo_create(0)', 'insert into app.item default values', 'create table public.t (id int)'])
      await expect(as('a reader', sql, database), sql).rejects.toThrow('permission denied')
    expect(await platform(`select * from pg_berth.lookup('fly-user')`, database)).toHaveLength(1)
  }

  test.each([
    '',
    'template template0',
    'template template1',
    'template "fly-db"',
    `template template0 encoding 'LATIN1' locale 'C'`,
  ])('gives a database that an admin creates in SQL the rights of the others (%s)', async (options) => {
    const locale = major === '17' && /locale/.test(options) ? 'locale_provider libc' : ''
    await admin(`create database "in sql" ${options} ${locale}`)
    expect(await bench.postgres.databases.list(cluster.id)).toContain('in sql')
    await expectShared('in sql')
    await bench.postgres.databases.drop(cluster.id, 'in sql')
    expect(await bench.postgres.databases.list(cluster.id)).toEqual(['fly-db'])
  })

  test.each([
    'is_template true allow_connections false connection limit 0',
    'connection limit 0',
    'owner reader',
    'owner pg_monitor is_template true',
    `template template0 encoding 'SQL_ASCII' locale 'C'`,
    'strategy file_copy oid 54321',
    `collation_version 'unknown'`,
  ])('lists and drops a database with the options %s', async (options) => {
    const locale = major === '17' && /locale/.test(options) ? 'locale_provider libc' : ''
    await admin(`create database odd ${options} ${locale}`)
    expect(await bench.postgres.databases.list(cluster.id)).toContain('odd')
    await bench.postgres.ensureGrants(cluster.id)
    if (!/allow_connections/.test(options))
      expect((await bench.postgres.extensions.list(cluster.id, 'odd')).length).toBeGreaterThan(20)
    await bench.postgres.databases.drop(cluster.id, 'odd')
    expect(await bench.postgres.databases.list(cluster.id)).toEqual(['fly-db'])
  })

  test.each(['pgbouncer', '*', 'a"b', ' '])('lists and drops a database named "%s"', async (name) => {
    await admin(`create database "${name.replaceAll('"', '""')}"`)
    expect(await bench.postgres.databases.list(cluster.id)).toContain(name)
    await bench.postgres.databases.drop(cluster.id, name)
  })

  test('a user is dropped or changed while somebody drops a database in which the user owns a table', async () => {
    for (let round = 0; round < 6; round++) {
      const name = `leaving ${round}`
      await bench.addUser(cluster, name, 'schema_admin')
      await admin('create database shared')
      await bench.postgres.query(
        cluster.id,
        'shared',
        `create table public.t (id int); alter table public.t owner to "${name}"`,
      )
      const change =
        round % 2 === 0
          ? bench.postgres.users.drop(cluster.id, name)
          : bench.postgres.users.setRole(cluster.id, { name, role: 'reader' })
      await Promise.all([change, bench.postgres.databases.drop(cluster.id, 'shared')])
      const user = await bench.postgres.users.find(cluster.id, name)
      expect(user?.role).toBe(round % 2 === 0 ? undefined : 'reader')
      await bench.postgres.users.drop(cluster.id, name)
      await bench.postgres.users.drop(cluster.id, name)
      expect(await bench.postgres.databases.list(cluster.id)).toEqual(['fly-db'])
    }
  })

  test('renames a database whose name is not UTF-8, so that it can be dropped', async () => {
    const locale = major === '17' ? 'locale_provider libc' : ''
    await admin(`create database ascii template template0 encoding 'SQL_ASCII' locale 'C' ${locale}`)
    await admin('create database victim')
    await admin(
      `do $$ begin execute format('alter database victim rename to %I', convert_from('\\xff', 'SQL_ASCII')); end $$`,
      'ascii',
    )
    expect(await bench.postgres.databases.list(cluster.id)).toContain('\ufffd')
    await bench.postgres.ensureGrants(cluster.id)
    const names = await bench.postgres.databases.list(cluster.id)
    expect(names).toEqual(['ascii', 'fly-db', expect.stringMatching(/^invalid_\d+$/)])
    await bench.postgres.databases.drop(cluster.id, names[2]!)
    await bench.postgres.databases.drop(cluster.id, 'ascii')
  })

  test.each([
    'create database evil owner postgres',
    'create database evil owner berth_pooler',
    'create database evil template postgres',
    'create database evil tablespace pg_global',
    'alter database "fly-db" owner to postgres',
    'alter database postgres owner to schema_admin',
    'alter database postgres set search_path = evil',
    'alter database template1 allow_connections false',
    'alter role "fly-user" createdb',
    'alter role schema_admin nocreatedb',
  ])('does not let an admin %s', async (sql) => {
    for (const database of ['fly-db', 'postgres']) {
      await expect(admin(sql, database)).rejects.toThrow(/permission denied|must be|cannot/)
    }
  })

  test('lets only admins create databases and connect to the one of the platform', async () => {
    for (const user of ['a writer', 'a reader']) {
      await expect(as(user, 'create database evil')).rejects.toThrow('permission denied to create database')
      await expect(as(user, 'select 1', 'postgres')).rejects.toThrow('permission denied for database')
    }
    for (const database of ['template0', 'template1'])
      await expect(admin('select 1', database)).rejects.toThrow(/permission denied|not currently accepting/)
  })

  test.each([
    'create table t (id int)',
    'create temp table t (id int)',
    'create schema evil',
    'select lo_create(0)',
    'create extension citext',
    'create function f() returns int language sql return 1',
    'create publication p',
    'select * from pg_berth.lookup($$fly-user$$)',
    'create event trigger t on ddl_command_end execute function pg_berth.lookup()',
  ])('does not let an admin create anything in the database of the platform: %s', async (sql) => {
    await expect(admin(sql)).rejects.toThrow(/permission denied|must be/)
  })

  test('upgrades a cluster of an earlier version before its admins may create databases', async () => {
    await platform('alter database template0 allow_connections true')
    for (const database of ['template0', 'postgres']) {
      await platform(
        `set local allow_system_table_mods = on; delete from pg_catalog.pg_init_privs where initprivs::text ~ 'writer';
         ${database === 'template0' ? 'alter extension plpgsql drop event trigger berth_share;' : ''}
         drop schema pg_berth cascade`,
        database,
      )
    }
    await bench.postgres.closeConnections(cluster.id)
    await platform('alter database template0 allow_connections false')
    await platform(
      `alter role schema_admin nocreatedb; revoke all on database template0 from berth_pooler;
       grant connect on database template0 to public; revoke connect on database postgres from schema_admin, berth_pooler;
       grant temporary on database postgres to public; grant execute on function lo_create to public`,
    )
    await expect(admin('create database early', 'fly-db')).rejects.toThrow('permission denied')
    await bench.postgres.ensureGrants(cluster.id)
    await bench.postgres.ensureGrants(cluster.id)
    await admin('create database late template template0')
    await expectShared('late')
    await expect(admin('select lo_create(0)')).rejects.toThrow('permission denied')
    await expect(admin('select 1', 'template0')).rejects.toThrow('not currently accepting connections')
    await bench.postgres.databases.drop(cluster.id, 'late')
  })
})
