// What tenants do with the API and with the resources of their cluster, to make the platform run their code or fail.
import type pg from 'pg'
import { describe, expect, test } from 'vitest'
import { accessOf, ask, attempt, connect, ways } from '../client.ts'
import type { Stage } from './stage.ts'

const encode = encodeURIComponent

/** Names with a meaning in SQL, in the files of PgBouncer and PostgreSQL, in shells or in logs. */
const names = [
  `a"; alter role "a-reader" superuser; --`,
  `'; drop role postgres; --`,
  '$(touch {outside}/written)',
  'a\nb = host=/tmp',
  'a\n[pgbouncer]\nadmin_users = a-reader',
  '%include {outside}/canary',
  '@/etc/passwd',
  '+reader',
  'all',
  '/^.*$',
  'a,b c',
  '--help',
  '%s%n%x',
  '\u202eevil',
  'a\tLOG:  database system is shut down',
]

/** Objects with the names and types of what the platform could look up, each of which proves that it was used. */
const traps = `
  create schema evil;
  create table public.ran (who text, what text);
  create function evil.run(what text) returns text language plpgsql as $$ begin
    insert into public.ran values (current_user, what);
    if current_setting('is_superuser') = 'on' then
      execute 'copy (select 1) to program ''touch {outside}/written''';
    end if;
    return what;
  end $$;
  create function evil.compare(text, text) returns bool language sql as $$ select evil.run('operator') is null $$;
  create function evil.compare(name, text) returns bool language sql as $$ select evil.run('operator') is null $$;
  create function evil.compare(name, name) returns bool language sql as $$ select evil.run('operator') is null $$;
  create function evil.compare(oid, oid) returns bool language sql as $$ select evil.run('operator') is null $$;
  create operator evil.= (leftarg = text, rightarg = text, function = evil.compare);
  create operator evil.= (leftarg = name, rightarg = text, function = evil.compare);
  create operator evil.= (leftarg = name, rightarg = name, function = evil.compare);
  create operator evil.= (leftarg = oid, rightarg = oid, function = evil.compare);
  create operator evil.~ (leftarg = text, rightarg = text, function = evil.compare);
  create operator public.= (leftarg = name, rightarg = name, function = evil.compare);
  create view evil.pg_extension as select evil.run('view') as extname;
  create view public.pg_available_extensions as select evil.run('view') as name;
  create view public.pg_roles as select evil.run('view') as rolname;
  create function evil.pg_terminate_backend(int, int) returns text language sql as $$ select evil.run('function') $$;
  create function public.set_config(text, text, boolean) returns text language sql as $$ select evil.run('function') $$;
  create function evil.format(text, text) returns text language sql as $$ select evil.run('function') $$;
  create domain evil.word as text check (evil.run('domain') is not null);
  create type evil.regclass as (x evil.word);
  create table public.item (id int default length(evil.run('default')), word text,
    copied text generated always as (upper(word)) stored);
  create function evil.fire() returns trigger language plpgsql as $$ begin perform evil.run('trigger'); return new; end $$;
  create trigger fire after insert or update or delete on public.item for each row execute function evil.fire();
  create rule watch as on delete to public.item do also select evil.run('rule');
  create policy watch on public.item using (evil.run('policy') is not null);
  alter table public.item enable row level security;
  alter table public.item force row level security;
  create function evil.index(text) returns text language plpgsql immutable as $$ begin
    if current_setting('is_superuser') = 'on' then perform evil.run('index'); end if;
    return $1;
  end $$;
  create index on public.item (evil.index(word)) where evil.index(word) is not null;
  create statistics evil.kept on evil.index(word), id from public.item;
  create materialized view public.kept as select evil.index('x') as x;
  create aggregate evil.max(text) (sfunc = textcat, stype = text);
  alter default privileges grant all on tables to public;
  create publication watched for table public.item;
`

export function abuseOf(stage: () => Stage): void {
  const fill = (text: string) => text.replaceAll('{outside}', stage().values.outside!)

  async function expectHealthy(): Promise<void> {
    for (const way of ways) expect(await attempt(stage().access.schema_admin, way), way).toBe(true)
    expect((await stage().call('GET', '/users')).status).toBe(200)
    expect((await stage().call('GET', '/databases/fly-db/extensions')).status).toBe(200)
    await stage().expectNoEscape()
  }

  describe('a name', () => {
    test.each(names)('%j is only a name, for a user and for a database', async (pattern) => {
      const { berth, id, call } = stage()
      const name = fill(pattern).slice(0, 60)
      expect((await call('POST', '/users', { username: name, role: 'reader' })).status).toBe(201)
      expect((await call('POST', '/databases', { name })).status).toBe(201)
      const access = await accessOf(berth, id, name)
      const query = 'select session_user::text as who, current_database()::text as place'
      for (const way of ways) {
        expect(await ask(access, way, query, { database: name }), way).toEqual([{ who: name, place: name }])
        expect(await attempt(access, way, 'select 1', { database: 'postgres' })).toEqual(expect.any(String))
        expect(await attempt(access, way, 'show users', { database: 'pgbouncer' })).toEqual(expect.any(String))
      }
      expect((await call('DELETE', `/databases/${encode(name)}`)).status).toBe(200)
      expect((await call('DELETE', `/users/${encode(name)}`)).status).toBe(204)
      await stage().expectNoEscape()
    })

    test.each(['postgres', 'berth_pooler', 'pg_monitor', 'schema_admin', 'public', 'none'])(
      'of the platform (%s) is refused',
      async (username) => {
        expect((await stage().call('POST', '/users', { username, role: 'reader' })).status).toBeGreaterThanOrEqual(400)
        for (const [method, rest] of [
          ['DELETE', ''],
          ['PATCH', ''],
          ['POST', '/rotate_password'],
          ['GET', '/credentials'],
        ] as const) {
          const { status } = await stage().call(
            method,
            `/users/${username}${rest}`,
            method === 'GET' ? undefined : { role: 'writer' },
          )
          expect(status, method).toBeGreaterThanOrEqual(400)
        }
        await expectHealthy()
      },
    )
  })

  test('a database full of traps is administered without running any', async () => {
    const { berth, id, call } = stage()
    expect((await call('POST', '/databases', { name: 'trap' })).status).toBe(201)
    expect((await call('POST', '/users', { username: 'trapper', role: 'schema_admin' })).status).toBe(201)
    const trapper = await accessOf(berth, id, 'trapper')
    await ask(trapper, 'direct', fill(traps), { database: 'trap' })
    await ask(
      trapper,
      'direct',
      `set role none; grant create on schema public to trapper; create table public.own (word text check (evil.run(word) is not null));
       create function public.own() returns int language sql security definer as 'select 1'`,
      { database: 'trap' },
    ).catch(() => undefined)
    // Some of the traps run while they are made.
    await ask(trapper, 'direct', 'truncate public.ran', { database: 'trap' })
    await ask(
      trapper,
      'direct',
      `alter database trap set search_path = evil, public, pg_catalog; alter database trap set role = 'schema_admin';
       alter database trap set row_security = off; alter database trap set check_function_bodies = off`,
    )
    expect((await call('GET', '/databases')).body.data).toContainEqual({ name: 'trap' })
    const place = '/databases/trap/extensions'
    expect((await call('GET', place)).body.data.length).toBeGreaterThan(20)
    for (const name of ['citext', 'earthdistance', 'dblink', 'postgres_fdw', 'amcheck', 'pageinspect', 'xml2']) {
      expect(await call('POST', place, { name, ...(name === 'amcheck' && { schema: 'evil' }) }), name).toMatchObject({
        status: 204,
      })
    }
    for (const name of ['earthdistance', 'cube', 'dblink', 'xml2']) {
      expect((await call('DELETE', `${place}/${name}?force=true`)).status, name).toBe(204)
    }
    expect((await call('PATCH', '/users/trapper', { role: 'writer' })).status).toBe(204)
    expect((await call('POST', '/users/trapper/rotate_password', { kill_sessions: true })).status).toBe(200)
    expect((await call('DELETE', '/users/trapper')).status).toBe(204)
    expect(
      await ask(stage().access.schema_admin, 'direct', 'select who, what from public.ran', { database: 'trap' }),
    ).toEqual([])
    expect((await call('DELETE', '/databases/trap')).status).toBe(200)
    await expectHealthy()
  })

  test('sessions in the database of the platform do not stop it', async () => {
    const { access, call } = stage()
    const place = { database: 'postgres' }
    const client = await connect(access.schema_admin, 'direct', place)
    try {
      await client.query(`set search_path = 'evil'; select pg_advisory_lock(n) from generate_series(1, 100) n`)
      await client.query('begin; lock table pg_catalog.pg_database in access share mode; savepoint held')
      for (const sql of ['lock table pg_database', 'lock table pg_authid in share mode', 'lock table pg_class']) {
        await expect(client.query(sql)).rejects.toThrow('permission denied')
        await client.query('rollback to held')
      }
      await client.query(`prepare transaction 'held'`)
      expect((await call('POST', '/databases', { name: 'beside' })).status).toBe(201)
      expect((await call('POST', '/users', { username: 'beside', role: 'schema_admin' })).status).toBe(201)
      expect((await call('DELETE', '/users/beside')).status).toBe(204)
      expect((await call('DELETE', '/databases/beside')).status).toBe(200)
    } finally {
      await client.query(`rollback prepared 'held'`).catch(() => undefined)
      await client.end()
    }
    for (const way of ways) expect(await attempt(access.writer, way, 'select 1', place)).toMatch('permission denied')
    await expectHealthy()
  })

  test('databases created in SQL are administered like the others', async () => {
    const { access, call } = stage()
    const client = await connect(access.schema_admin, 'pooler', { database: 'postgres' })
    try {
      await client.query('create database "made in SQL" template template0 is_template true')
      await client.query('create database pgbouncer connection limit 0')
    } finally {
      await client.end()
    }
    const made = { database: 'made in SQL' }
    expect((await call('GET', '/databases')).body.data).toEqual(
      expect.arrayContaining([{ name: 'made in SQL' }, { name: 'pgbouncer' }]),
    )
    for (const way of ways) {
      await ask(access.schema_admin, way, 'drop table if exists t; create table t (id serial)', made)
      await ask(access.writer, way, 'insert into t default values', made)
      expect(await ask(access.reader, way, 'select id from t', made)).toEqual([{ id: 1 }])
      expect(await attempt(access.reader, way, 'insert into t default values', made)).toMatch('permission denied')
      expect(await attempt(access.reader, way, 'select lo_create(0)', made)).toMatch('permission denied')
    }
    expect(
      (await call('POST', `/databases/${encode('made in SQL')}/extensions`, { name: 'earthdistance' })).status,
    ).toBe(204)
    for (const name of ['made in SQL', 'pgbouncer'])
      expect((await call('DELETE', `/databases/${encode(name)}`)).status).toBe(200)
    await expectHealthy()
  })

  test('connections of tenants leave some for the platform and for the password lookup', async () => {
    const { access } = stage()
    const clients: pg.Client[] = []
    try {
      let refused = ''
      while (!refused && clients.length < 500) {
        await connect(access.reader, 'direct').then(
          (client) => clients.push(client),
          (error: Error) => {
            refused = error.message
          },
        )
      }
      expect(refused).toMatch(/remaining connection slots are reserved|too many clients/)
      expect((await stage().call('GET', '/users')).status).toBe(200)
      expect((await stage().call('POST', '/users', { username: 'late', role: 'reader' })).status).toBe(201)
      expect((await stage().call('DELETE', '/users/late')).status).toBe(204)
    } finally {
      for (const client of clients) await client.end()
    }
    await expectHealthy()
  })

  test('floods of notices, errors, notifications and temporary files stay in the session', async () => {
    const { access } = stage()
    const client = await connect(access.reader, 'direct', { query_timeout: 60_000 })
    try {
      await client.query(`do $$ begin for i in 1..20000 loop raise notice '%', repeat('x', 100); end loop; end $$`)
      await client.query(
        `do $$ begin for i in 1..2000 loop begin raise 'x'; exception when others then null; end; end loop; end $$`,
      )
      await client.query('listen flood')
      await client.query(`select pg_notify('flood', n || repeat('x', 7000)) from generate_series(1, 2000) n`)
      await expect(client.query(`select pg_notify('flood', repeat('x', 9000))`)).rejects.toThrow(
        'payload string too long',
      )
      await expect(client.query(`select repeat('x', 1100000000)`)).rejects.toThrow()
      const { rows } = await client.query('show temp_file_limit')
      expect(rows[0].temp_file_limit).toMatch(/^\d+(MB|GB)$/)
    } finally {
      await client.end()
    }
    await expectHealthy()
  })

  test('locks and open transactions of tenants do not stop the platform for long', async () => {
    const { access } = stage()
    const client = await connect(access.schema_admin, 'direct')
    try {
      await client.query('select pg_advisory_lock(n) from generate_series(1, 100) n')
      await client.query('begin; create table public.held (id int); lock table public.held; create schema held')
      const started = performance.now()
      expect((await stage().call('GET', '/databases/fly-db/extensions')).status).toBe(200)
      expect((await stage().call('POST', '/databases', { name: 'beside' })).status).toBe(201)
      expect((await stage().call('DELETE', '/databases/beside')).status).toBe(200)
      // The schema exists only in the open transaction.
      const waiting = await stage().call('POST', '/databases/fly-db/extensions', { name: 'seg', schema: 'held' })
      expect(waiting.status).toBeGreaterThanOrEqual(400)
      expect(performance.now() - started).toBeLessThan(60_000)
    } finally {
      await client.query('rollback').finally(() => client.end())
    }
    await expectHealthy()
  })
}
