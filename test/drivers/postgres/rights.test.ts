import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { allowEventTriggers } from '../../../src/drivers/postgres/sql/rights.ts'
import { ask, type ClusterBench, openBench, password, type TestCluster } from '../../support/cluster.ts'

let bench: ClusterBench

beforeAll(async () => {
  bench = await openBench()
})
afterAll(() => bench?.remove())

const roles = ['schema_admin', 'writer', 'reader'] as const

describe.each(['16', '17'] as const)('PostgreSQL %s', (major) => {
  let cluster: TestCluster
  let port: number

  beforeAll(async () => {
    cluster = await bench.startCluster(major)
    port = cluster.spec.port
    for (const role of roles) await bench.addUser(cluster, `a ${role}`, role)
    await ask(port, `create table secret_names (id int); select lo_create(4711)`)
  })

  const as = (role: (typeof roles)[number], sql: string, database = 'fly-db') =>
    ask(port, sql, { user: `a ${role}`, database })
  const admin = (sql: string, database = 'fly-db') => bench.postgres.query(cluster.id, database, sql)

  describe('a tenant', () => {
    test.each([
      'select rolname, rolpassword from pg_authid',
      'select usename, passwd from pg_shadow',
      'select umoptions from pg_user_mapping',
      'select subconninfo from pg_subscription',
      'select * from pg_statistic',
      'select data from pg_largeobject',
      'select * from pg_hba_file_rules',
      'select * from pg_ident_file_mappings',
      `update pg_group set groname = 'taken' where groname = 'pg_monitor'`,
      `delete from pg_group where groname = 'pg_checkpoint'`,
      `update pg_stat_database_conflicts set datname = 'taken' where datname = 'fly-db'`,
      'delete from pg_stat_database_conflicts',
      `update pg_authid set rolsuper = true`,
      `select pg_read_file('/etc/passwd')`,
      `select pg_read_file('postgresql.auto.conf')`,
      `select pg_read_binary_file('global/pg_control')`,
      `select pg_stat_file('/etc/passwd')`,
      `select pg_ls_dir('.')`,
      `select lo_import('/etc/passwd')`,
      `select lo_export(4711, '/tmp/berth-tenant-wrote-this')`,
      `copy secret_names from program 'id'`,
      `copy secret_names to '/tmp/berth-tenant-wrote-this'`,
      `copy secret_names from '/etc/passwd'`,
      'create extension dblink',
      'create extension postgres_fdw',
      'create extension file_fdw',
      'create extension pageinspect',
      `create subscription s connection 'host=127.0.0.1' publication p with (connect = false)`,
      `load 'dblink'`,
      'set session_replication_role = replica',
      'alter event trigger berth_share disable',
      'drop event trigger berth_share',
      'drop extension plpgsql cascade',
      'select pg_berth.share(0, 0)',
      `create function pg_berth.share(oid, int) returns void language sql as ''`,
      `alter function pg_berth.share(oid, oid) security definer`,
    ])('cannot %s', async (sql) => {
      for (const role of roles) {
        for (const attempt of [sql, `set role none; ${sql}`])
          await expect(as(role, attempt), role).rejects.toThrow(/permission denied|must be|access to library/)
      }
    })

    test('has only the system rights of PUBLIC and pg_monitor', async () => {
      const rights = ['select', 'insert', 'update', 'delete', 'truncate']
      const beyond = (role: string) =>
        admin(
          `select pg_class.oid::regclass::text as name, ability from pg_catalog.pg_class, unnest('{${rights}}'::text[]) as ability
           where pg_class.oid < 16384 and relkind in ('r', 'v') and has_table_privilege('${role}', pg_class.oid, ability)
             and not has_table_privilege('public', pg_class.oid, ability)
             and not has_table_privilege('pg_monitor', pg_class.oid, ability)`,
        )
      for (const role of roles) expect(await beyond(role), role).toEqual([])
    })

    test('does not see statements of the platform', async () => {
      await bench.postgres.users.setPassword(cluster.id, 'a reader', password)
      await expect(
        bench.postgres.users.create(cluster.id, { name: 'a reader', role: 'reader', password }),
      ).rejects.toThrow()
      const sources = ['query from pg_stat_activity', 'query from pg_stat_statements']
      for (const source of sources) {
        const words = await as('schema_admin', `select ${source} where query ~ 'SCRAM|PASSWORD' and query !~ 'select'`)
        expect(words, source).toEqual([])
      }
      const state = await bench.postgres.inspect(cluster.id)
      expect(state.is).toBe('ready')
      expect(bench.supervisor.readLog(`pg-${cluster.id}`, 1000).join('\n')).not.toContain('SCRAM-SHA-256$')
    })

    test("cannot read another user's password for a foreign server", async () => {
      await bench.postgres.extensions.enable(cluster.id, 'fly-db', 'postgres_fdw')
      await ask(
        port,
        `create server far foreign data wrapper postgres_fdw options (host '127.0.0.1');
         create user mapping for current_user server far options (user 'x', password 'hidden from others')`,
      )
      for (const role of ['writer', 'reader'] as const) {
        const seen = await as(role, 'select umoptions::text as options from pg_user_mappings')
        expect(JSON.stringify(seen)).not.toContain('hidden')
      }
    })
  })

  describe('an extension', () => {
    const enable = (name: string, options = {}) => bench.postgres.extensions.enable(cluster.id, database, name, options)
    const database = 'extended'
    const tenant = (sql: string) => ask(port, sql, { database })
    const placeOf = async (name: string) =>
      (
        await admin(
          `select extnamespace::regnamespace::text as schema, extowner::regrole::text as owner from pg_extension where extname = '${name}'`,
          database,
        )
      )[0]

    beforeAll(async () => {
      await bench.postgres.databases.create(cluster.id, database)
      await tenant('create schema apart; create extension cube schema apart')
    })

    test('that PostgreSQL trusts belongs to the admins', async () => {
      await enable('citext')
      expect(await placeOf('citext')).toEqual({ schema: 'public', owner: 'schema_admin' })
      await tenant(`drop extension citext; revoke create on database ${database} from schema_admin`)
      await expect(enable('citext')).rejects.toMatchObject({ code: 'invalid' })
      await tenant(`grant create on database ${database} to schema_admin`)
    })

    test('does not call functions that a tenant planted in its schema', async () => {
      await tenant(
        `create function public.spring(apart.cube) returns bool language plpgsql as $$ begin raise 'ran as %', current_user; end $$;
         create domain public.cube as apart.cube check (public.spring(value));
         create function public.cube_distance(public.cube, public.cube) returns float8 language sql as 'select 1.0::float8'`,
      )
      await enable('earthdistance')
      expect(await placeOf('earthdistance')).toEqual({ schema: 'public', owner: 'postgres' })
      expect(
        await admin(
          `select typbasetype::regtype::text as base from pg_type where oid = 'public.earth'::regtype`,
          database,
        ),
      ).toEqual([{ base: 'apart.cube' }])
      await tenant('drop domain public.cube cascade')
    })

    test('fails without remains if a tenant has objects of the same name', async () => {
      await tenant(
        `create function public.dblink_get_connections() returns text[] language sql as 'select null::text[]'`,
      )
      await expect(enable('dblink')).rejects.toMatchObject({ code: 'conflict' })
      expect(await placeOf('dblink')).toBeUndefined()
      await enable('dblink', { schema: 'links', createSchema: true })
      expect(await placeOf('dblink')).toEqual({ schema: 'links', owner: 'postgres' })
      expect(await tenant('select links.dblink_get_connections() as open')).toEqual([{ open: null }])
    })

    test('that cannot be moved gets a schema of its own, owned by the admins', async () => {
      await expect(enable('xml2', { schema: 'public' })).rejects.toMatchObject({ code: 'conflict' })
      await enable('xml2')
      expect(await placeOf('xml2')).toEqual({ schema: 'xml2', owner: 'postgres' })
      expect(await tenant(`select xml2.xml_valid('<a/>') as valid`)).toEqual([{ valid: true }])
      await tenant('create table xml2.mine (id int)')
    })

    test.each(['pg_catalog', 'pg_berth', 'pg_toast', 'information_schema'])(
      'is not installed into %s',
      async (schema) => {
        for (const name of ['hstore', 'pageinspect']) {
          await expect(enable(name, { schema })).rejects.toMatchObject({ code: 'invalid' })
        }
      },
    )

    test.each(['a"b', "it's", '$1', 'a\\b'])(
      'is not installed into schemas that PostgreSQL rejects, such as %s',
      async (schema) => {
        await bench.postgres.databases.create(cluster.id, 'quoted')
        const options = { schema, createSchema: true }
        await expect(
          bench.postgres.extensions.enable(cluster.id, 'quoted', 'earthdistance', options),
        ).rejects.toMatchObject({ code: 'invalid' })
        await bench.postgres.databases.drop(cluster.id, 'quoted')
      },
    )

    test('leaves nothing in the schema of the platform', async () => {
      expect(
        await admin(
          `select proname from pg_proc where pronamespace = 'pg_berth'::regnamespace and proname !~ '^(lookup|share|share_new)$'`,
          database,
        ),
      ).toEqual([])
    })
  })

  describe('a new object', () => {
    const makers = {
      'an admin': (sql: string) => as('schema_admin', sql),
      'an admin without the group role': (sql: string) => as('schema_admin', `set role none; ${sql}`),
      'a writer with the right to': (sql: string) => as('writer', sql),
      'the platform': (sql: string) => admin(`${allowEventTriggers}; ${sql}`),
    }

    test.each(Object.entries(makers))('by %s is shared with all users', async (_name, make) => {
      await ask(
        port,
        'create schema made; grant create on schema made to writer; grant create, usage on schema made to "a schema_admin"',
      )
      await make(
        `create table made.plain (id serial, name text);
         create table made.copy as select 1 as id, 'x' as name;
         select 1 as id, 'x' as name into made.chosen;
         create view made.view as select id, name from made.plain;
         create materialized view made.kept as select 1 as id;
         create sequence made."the Count";
         create table made.parted (id int, name text) partition by list (id);
         create table made.part partition of made.parted for values in (1);
         alter table made.copy add number int generated always as identity`,
      )
      for (const table of ['plain', 'copy', 'chosen', 'view', 'parted', 'part']) {
        await as('writer', `insert into made.${table} (id, name) values (1, 'a'); update made.${table} set name = 'b'`)
        expect(await as('reader', `select distinct name from made.${table}`), table).toEqual([{ name: 'b' }])
        for (const sql of ['insert into made.@ (id) values (1)', 'update made.@ set id = 1', 'delete from made.@'])
          await expect(as('reader', sql.replace('@', table)), sql).rejects.toThrow('permission denied')
        await as('writer', `delete from made.${table}`)
        await as('schema_admin', `insert into made.${table} (id, name) values (1, 'a')`)
      }
      expect(await as('reader', 'select id from made.kept')).toEqual([{ id: 1 }])
      expect(await as('writer', `select nextval('made."the Count"')::int as n`)).toEqual([{ n: 1 }])
      expect(await as('reader', 'select last_value::int as n from made."the Count"')).toEqual([{ n: 1 }])
      await expect(as('reader', `select nextval('made."the Count"')`)).rejects.toThrow('permission denied')
      await admin('drop schema made cascade')
    })

    test('in one statement with its schema, or in a new database, is shared too', async () => {
      await bench.postgres.databases.create(cluster.id, 'another')
      for (const database of ['fly-db', 'another']) {
        const make = 'create schema "To gether" create table t (id int) create view v as select id from t'
        await as('schema_admin', make, database)
        await as('writer', 'insert into "To gether".t values (7)', database)
        expect(await as('reader', 'select id from "To gether".v', database)).toEqual([{ id: 7 }])
        await as('schema_admin', 'drop schema "To gether" cascade', database)
      }
      await bench.postgres.databases.drop(cluster.id, 'another')
    })

    test('of an extension is shared, and so is the schema of the extension', async () => {
      await bench.postgres.extensions.enable(cluster.id, 'fly-db', 'pg_buffercache', {
        schema: 'seen',
        createSchema: true,
      })
      expect(await as('reader', `select has_schema_privilege('seen', 'usage') as may`)).toEqual([{ may: true }])
      await as('schema_admin', 'create extension hstore schema seen')
      expect(await as('reader', `select ('a=>1'::seen.hstore operator(seen.->) 'a') as a`)).toEqual([{ a: '1' }])
      await as('schema_admin', 'drop extension hstore')
    })

    test('whose grants were revoked keeps them revoked when it is replaced', async () => {
      const replace = 'create or replace view public.narrow as select n, n * 2 as twice from public.wide'
      await as(
        'schema_admin',
        'create table public.wide as select 1 as n; create view public.narrow as select n from public.wide',
      )
      expect(await as('reader', 'select * from narrow')).toEqual([{ n: 1 }])
      await as('schema_admin', 'revoke all on public.narrow from reader, writer')
      await as('schema_admin', replace)
      await as('schema_admin', `begin; savepoint s; ${replace}; commit`)
      for (const role of ['reader', 'writer'] as const) {
        await expect(as(role, 'select * from narrow')).rejects.toThrow('permission denied')
      }
      await as('schema_admin', `begin; savepoint s; drop view public.narrow; ${replace}; commit`)
      expect(await as('reader', 'select * from narrow')).toEqual([{ n: 1, twice: 2 }])
      await as('schema_admin', 'drop table public.wide cascade')
    })

    test('that is a large object can be created only by writers', async () => {
      await bench.postgres.databases.create(cluster.id, 'another')
      for (const database of ['fly-db', 'another']) {
        for (const make of ['lo_creat(-1)', 'lo_create(0)', `lo_from_bytea(0, 'x')`]) {
          await expect(as('reader', `select ${make}`, database)).rejects.toThrow('permission denied')
          await as('writer', `select lo_unlink(${make})`, database)
        }
      }
      await bench.postgres.databases.drop(cluster.id, 'another')
    })

    test('that is temporary is not shared', async () => {
      const statements = 'create temp table mine (id int); insert into mine values (1)'
      await expect(as('reader', statements)).resolves.toBeDefined()
    })

    test('of a dropped user stays shared', async () => {
      await bench.addUser(cluster, 'leaving', 'schema_admin')
      await ask(port, 'set role none; create schema left_over; create table left_over.t (id int)', { user: 'leaving' })
      await bench.postgres.users.drop(cluster.id, 'leaving')
      await as('writer', 'insert into left_over.t values (1)')
      expect(await as('reader', 'select id from left_over.t')).toEqual([{ id: 1 }])
      await as('schema_admin', 'drop schema left_over cascade')
    })
  })

  test('upgrades the grants of an older cluster and revokes excessive ones', async () => {
    await bench.postgres.databases.create(cluster.id, 'old')
    for (const database of ['fly-db', 'old', 'template1']) {
      await admin(
        `alter extension plpgsql drop event trigger berth_share; drop event trigger berth_share;
         drop function pg_berth.share, pg_berth.share_new;
         set local allow_system_table_mods = on; delete from pg_init_privs where initprivs::text ~ 'writer';
         grant execute on function lo_creat, lo_create, lo_from_bytea to public`,
        database,
      )
    }
    await bench.postgres.closeConnections(cluster.id)
    await admin(
      `revoke reader from writer; revoke writer from schema_admin;
       grant pg_read_all_data, pg_write_all_data to schema_admin, writer; grant pg_read_all_data to reader`,
    )
    const old = ['fly-db', 'old']
    for (const database of old)
      await as('schema_admin', 'create schema "be fore"; create table "be fore".t (id serial)', database)
    expect((await as('reader', 'select rolpassword from pg_authid')).length).toBeGreaterThan(0)
    await as('writer', 'begin; delete from pg_stat_database_conflicts; rollback')
    await bench.postgres.ensureGrants(cluster.id)
    await bench.postgres.ensureGrants(cluster.id)
    await bench.postgres.databases.create(cluster.id, 'new')
    for (const database of old) {
      await as('writer', 'insert into "be fore".t default values', database)
      expect(await as('reader', 'select id from "be fore".t', database)).toEqual([{ id: 1 }])
    }
    for (const database of [...old, 'new']) {
      await as('schema_admin', 'create table public.after (id serial)', database)
      await as('writer', 'insert into after default values', database)
      expect(await as('reader', 'select id from after', database)).toEqual([{ id: 1 }])
      for (const sql of ['select * from pg_authid', 'select lo_create(0)'])
        await expect(as('reader', sql, database)).rejects.toThrow('permission denied')
      await expect(as('writer', 'delete from pg_stat_database_conflicts', database)).rejects.toThrow(
        'permission denied',
      )
    }
  })
})
