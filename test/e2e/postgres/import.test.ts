import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end, kill } from '../../support/berth.ts'
import { accessOf, createCluster, destroy, processesOf, untilReady } from '../../support/client.ts'
import { type SourceServer, sourcePassword, startSource } from '../../support/import/source.ts'
import { until } from '../../support/until.ts'

const berth = new Berth({ BERTH_DRILL_INTERVAL: 'off' })
const clusters: Record<string, string> = {}
let source: SourceServer

const show = async (id: string) => (await berth.call('GET', `/v1/postgres/${id}/import`)).body.data

async function untilStatus(id: string, status: string): Promise<void> {
  await until(async () => {
    const seen = await show(id)
    if (seen.status !== status && ['failed', 'canceled', 'done'].includes(seen.status))
      throw new Error(JSON.stringify(seen))
    return seen.status === status
  }, 180)
}

/** Runs a query as the default user, in the default database or another one. */
async function ask(id: string, text: string, database = 'fly-db') {
  const { direct, password } = await accessOf(berth, id)
  const client = new pg.Client({ ...direct, user: 'fly-user', password, database })
  await client.connect()
  try {
    const result = await client.query(text)
    return (Array.isArray(result) ? result.at(-1) : result).rows
  } finally {
    await client.end()
  }
}

const shop = `
  create schema sales;
  create schema "odd ""name";
  create extension pg_trgm schema sales;
  create extension hstore;
  create extension dblink;
  create type sales.state as enum ('new', 'paid');
  create table sales.customer (id bigint generated always as identity primary key, name text not null unique,
    attributes hstore, lower_name text generated always as (lower(name)) stored);
  create index on sales.customer using gin (name sales.gin_trgm_ops);
  create table sales.order (id serial primary key, customer bigint references sales.customer, state sales.state default 'new');
  create table "odd ""name"."a;b" ("x y" int primary key);
  create table measurement (at date, value int, primary key (at, value)) partition by range (at);
  create table measurement_1 partition of measurement for values from ('2026-01-01') to ('2026-02-01');
  create table measurement_2 partition of measurement for values from ('2026-02-01') to ('2026-03-01');
  create view sales.paid as select * from sales.order where state = 'paid';
  create materialized view sales.total as select count(*) from sales.order;
  create function sales.touch() returns trigger language plpgsql as $$ begin new.name := trim(new.name); return new; end $$;
  create trigger touch before insert on sales.customer for each row execute function sales.touch();
  create function public.watch() returns event_trigger language plpgsql as $$ begin end $$;
  create event trigger watch on ddl_command_end execute function public.watch();
  create role stranger; grant select on sales.customer to stranger;
  insert into sales.customer (name, attributes) select 'customer ' || n, hstore('n', n::text) from generate_series(1, 5000) n;
  insert into sales.order (customer, state) select n, (array['new', 'paid'])[1 + n % 2]::sales.state from generate_series(1, 3000) n;
  insert into "odd ""name"."a;b" select generate_series(1, 10);
  insert into measurement select date '2026-01-01' + n % 59, n from generate_series(1, 500) n;
  select nextval('sales.order_id_seq');
  select lo_from_bytea(4242, 'a large object');
`

beforeAll(async () => {
  await Promise.all([
    berth.up(),
    startSource('16').then((started) => {
      source = started
    }),
  ])
  for (const major of ['16', '17'])
    clusters[major] = await createCluster(berth, { name: `shop-${major}`, pg_major_version: major })
  await source.query('postgres', 'create database shop')
  await source.query('shop', shop)
  for (const id of Object.values(clusters)) await untilReady(berth, id, 120)
}, 240_000)

afterAll(async () => {
  await source?.remove()
  await destroy(berth)
}, 120_000)

describe('an import', () => {
  test('copies everything of a database, with the rights of the platform', { timeout: 240_000 }, async () => {
    const id = clusters['16']!
    const { stdout } = await berth.cli('postgres', 'import', 'shop-16', source.url('shop'), '--json')
    expect(stdout).not.toContain('w%25rd')
    expect(JSON.parse(stdout).data).toMatchObject({
      status: 'done',
      source: `postgresql://owner@127.0.0.1:${source.port}/shop`,
      tables_done: 5,
      tables_total: 5,
      warnings: ['event triggers are not copied: watch'],
    })
    expect(await ask(id, 'select count(*)::int as n, max(lower_name) as name from sales.customer')).toEqual([
      { n: 5000, name: 'customer 999' },
    ])
    expect(await ask(id, `select count(*)::int as n from sales.customer where name ilike '%mer 77%'`)).toEqual([
      { n: 11 },
    ])
    expect(await ask(id, 'select count(*)::int as n from sales.paid')).toEqual([{ n: 1500 }])
    expect(await ask(id, 'select count(*)::int as n from measurement_2')).not.toEqual([{ n: 0 }])
    expect(await ask(id, 'select "x y" as n from "odd ""name"."a;b" order by 1 desc limit 1')).toEqual([{ n: 10 }])
    expect(await ask(id, `select convert_from(lo_get(4242), 'UTF8') as text`)).toEqual([{ text: 'a large object' }])
    expect(await ask(id, `insert into sales.order (customer) values (1) returning id`)).toEqual([{ id: 3002 }])
    expect(
      await ask(
        id,
        `select distinct relowner::regrole::text as owner, has_table_privilege('reader', pg_class.oid, 'select') as shared
         from pg_class where relnamespace = 'sales'::regnamespace and relkind in ('r', 'v', 'm')`,
      ),
    ).toEqual([{ owner: 'schema_admin', shared: true }])
    expect(await ask(id, `select datname from pg_database where datname = 'berth_import'`)).toEqual([])
    expect(await ask(id, `select rolname from pg_roles where rolname in ('berth_import', 'stranger')`)).toEqual([])
    expect(berth.output).not.toContain(sourcePassword)
  })

  test('reports what is wrong with the source or the target', { timeout: 120_000 }, async () => {
    const id = clusters['16']!
    const failure = async (url: string, body: object = {}) => {
      await berth.ok('POST', `/v1/postgres/${id}/import`, { url, ...body })
      await untilStatus(id, 'failed')
      return (await show(id)).failure
    }
    expect(await failure(source.url('shop'))).toMatch(/^database fly-db is not empty: it has the /)
    await berth.ok('POST', `/v1/postgres/${id}/databases`, { name: 'empty' })
    const empty = { database: 'empty' }
    expect(await failure(source.url('shop').replace('w%25rd', 'x'), empty)).toBe(
      'the source reports: password authentication failed for user "owner"',
    )
    expect(await failure(source.url('nowhere'), empty)).toBe('the source reports: database "nowhere" does not exist')
    expect(await failure(`${source.url('shop')}?sslmode=require`, empty)).toBe(
      'the source does not support TLS, which sslmode=require requires',
    )
    expect(await failure('postgresql://a:b@127.0.0.1:1/shop', empty)).toBe('the source cannot be reached')
    expect(await failure('postgresql://a:b@169.254.169.254/shop', empty)).toBe('the source cannot be reached')
    await source.query('shop', 'create table public.bare (n int)')
    expect(await failure(source.url('shop'), { ...empty, live: true })).toBe(
      'tables without a primary key need "alter table … replica identity full" at the source: public.bare',
    )
    await source.query('shop', 'drop table public.bare')
    expect(await source.query('shop', 'select slot_name from pg_replication_slots')).toEqual([])
  })
})

describe('an interrupted import', () => {
  test('goes on after the control plane and its own processes were killed', { timeout: 240_000 }, async () => {
    const id = clusters['16']!
    await source.query(
      'shop',
      `create table sales.large as select n as id, repeat(md5(n::text), 20) as text from generate_series(1, 60000) n`,
    )
    await berth.ok('POST', `/v1/postgres/${id}/databases`, { name: 'second' })
    await berth.ok('POST', `/v1/postgres/${id}/import`, { url: source.url('shop'), database: 'second', jobs: 1 })
    const job = `${berth.home}/clusters/${id}/import/work`
    for (const state of ['dumping', 'restoring']) {
      await untilStatus(id, state)
      await until(() => processesOf(job).length > 0)
      for (const child of berth.children) await end(child)
      for (const { pid } of processesOf(job)) kill(pid)
      await berth.up()
    }
    await untilStatus(id, 'done')
    expect(await ask(id, 'select count(*)::int as n from sales.large', 'second')).toEqual([{ n: 60_000 }])
    expect(await ask(id, 'select count(*)::int as n from sales.customer', 'second')).toEqual([{ n: 5000 }])
    await source.query('shop', 'drop table sales.large')
  })
})

describe('a live import', () => {
  test('follows the source while it writes, and has every row after the cut-over', { timeout: 240_000 }, async () => {
    const id = clusters['17']!
    let written = 0
    let isWriting = true
    const write = async () => {
      while (isWriting) {
        await source.query(
          'shop',
          `insert into sales.customer (name) values ('live ${++written}');
           update sales.order set state = 'paid' where id = ${written};
           delete from sales.order where id = ${3000 - written};
           insert into measurement values ('2026-01-15', ${10_000 + written})`,
        )
      }
    }
    let writer = write()
    await berth.ok('POST', `/v1/postgres/${id}/import`, { url: source.url('shop'), live: true })
    await untilStatus(id, 'live')
    const before = written
    await until(() => written > before + 20, 60)
    const restored = await restoreNow(id)
    isWriting = false
    await writer
    await source.stop()
    await source.start()
    isWriting = true
    writer = write()
    await berth.ok('POST', `/v1/postgres/${id}/import/cutover`)
    expect((await show(id)).status).toBe('cutover')
    isWriting = false
    await writer
    await untilStatus(id, 'done')
    expect(await show(id)).toMatchObject({ lag_bytes: 0, live: true })
    for (const table of ['sales.customer', 'sales.order', 'measurement', '"odd ""name"."a;b"']) {
      const rows = `select t::text as row from ${table} t order by 1`
      expect(await ask(id, rows), table).toEqual(await source.query('shop', rows))
    }
    const next = `select nextval('sales.order_id_seq')::int as id`
    expect(await ask(id, next)).toEqual(await source.query('shop', next))
    expect(await source.query('shop', 'select slot_name from pg_replication_slots')).toEqual([])
    expect(await source.query('shop', 'select pubname from pg_publication')).toEqual([])
    expect(await ask(id, `select rolname from pg_roles where rolname = 'berth_import'`)).toEqual([])
    const { health } = (await berth.call('GET', `/v1/postgres/${id}`)).body.data
    expect(health.status).toBe('ok')
    await untilReady(berth, restored, 120)
    expect(await show(restored)).toBeNull()
    expect(await ask(restored, `select datname from pg_database where datname = 'berth_import'`)).toEqual([])
    expect(await ask(restored, `select rolname from pg_roles where rolname = 'berth_import'`)).toEqual([])
    expect(await ask(restored, 'select subname from pg_stat_subscription')).toEqual([])
    expect(await ask(restored, 'show max_logical_replication_workers')).toEqual([
      { max_logical_replication_workers: '0' },
    ])
  })

  /** Starts a restore while the import goes on. */
  async function restoreNow(id: string): Promise<string> {
    let restored = ''
    // It needs a backup first.
    await until(async () => {
      const { status, body } = await berth.call('POST', `/v1/postgres/${id}/fork`, { name: 'meanwhile' })
      if (status === 201) restored = body.data.id
      return status === 201
    }, 120)
    return restored
  }
})
