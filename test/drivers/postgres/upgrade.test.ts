import { existsSync, renameSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ensureToolchain } from '../../../src/drivers/postgres/toolchain/toolchain.ts'
import type { UpgradeDriver } from '../../../src/drivers/postgres/upgrade/driver.ts'
import { upgradeDriver } from '../../../src/drivers/postgres/upgrade/upgrade.ts'
import type { JobDriver } from '../../../src/drivers/s6/driver.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import type { Toolchain } from '../../../src/model/postgres/toolchain.ts'
import { type UpgradeStage, upgradeStages } from '../../../src/model/postgres/upgrade.ts'
import { ask, type ClusterBench, openBench, type TestCluster, untilReady } from '../../support/cluster.ts'
import { until } from '../../support/until.ts'

describe('an upgrade from PostgreSQL 16 to 17', () => {
  let bench: ClusterBench
  let upgrades: UpgradeDriver
  let jobs: JobDriver
  let target: Toolchain

  beforeAll(async () => {
    bench = await openBench()
    jobs = jobDriver(bench.supervisor)
    upgrades = upgradeDriver({ home: bench.home, jobs })
    target = await ensureToolchain('17', bench.home)
  }, 120_000)

  afterAll(async () => {
    await bench.remove()
  })

  async function upgrade({ id, spec }: TestCluster) {
    await bench.postgres.stop(id)
    const upgradeSpec = { ...spec, target }
    await upgrades.startUpgrade(id, upgradeSpec)
    await until(async () => (await upgrades.inspectUpgrade(id, upgradeSpec)).is !== 'running', 120)
    return upgrades.inspectUpgrade(id, upgradeSpec)
  }

  /** Starts the upgrade and kills its job in this stage, or the next one if it is fast. */
  async function killIn(stage: UpgradeStage, { id, spec }: TestCluster) {
    await bench.postgres.stop(id)
    const upgradeSpec = { ...spec, target }
    await upgrades.startUpgrade(id, upgradeSpec)
    await until(async () => {
      const seen = await upgrades.inspectUpgrade(id, upgradeSpec)
      return seen.is === 'running' && upgradeStages.indexOf(seen.stage) >= upgradeStages.indexOf(stage)
    }, 60)
    const job = await jobs.inspectJob(`upgrade-${id}`)
    process.kill((job as { pid: number }).pid, 'SIGKILL')
    await until(async () => (await jobs.inspectJob(`upgrade-${id}`)).is === 'ended')
    expect(await upgrades.inspectUpgrade(id, upgradeSpec)).toEqual({ is: 'absent' })
  }

  async function startUpgraded({ id, spec }: TestCluster) {
    await upgrades.removeUpgrade(id)
    await bench.postgres.ensureRunning(id, { ...spec, toolchain: target })
    await untilReady(bench.postgres, id)
  }

  /** Wherever PostgreSQL may evaluate an expression, one that fails for everyone but the tenant. */
  const hostileObjects = `
    create function public.trap(n int) returns int immutable language plpgsql as $$ begin
      if current_user <> 'schema_admin' then raise 'called by %', current_user; end if;
      return n;
    end $$;
    create function public.atomic(n int) returns int immutable begin atomic; select n + 1; end;
    create procedure public.add(n int) language sql as 'insert into public.number values (n, null)';
    create table public.expression (n int default public.trap(1) check (public.trap(1) > 0),
      m int generated always as (public.trap(2)) stored);
    create index expression_trap_idx on public.expression ((public.trap(n) + public.trap(1)));
    create index on public.expression (n) where public.trap(1) = 1;
    create statistics public.expression_statistics on (public.trap(n)), n from public.expression;
    insert into public.expression select n from generate_series(1, 100) n;
    create table public.part (n int) partition by range ((public.trap(n) + 1));
    create table public.part_1 partition of public.part for values from (0) to (10);
    create table public.part_2 partition of public.part default;
    create domain public.small as int default public.trap(1) check (value < public.trap(10));
    create table public.domained (s public.small); insert into public.domained values (1);
    create view public.trapped as select public.trap(1) as n;
    create materialized view public.stored as select public.trap(1) as n;
    create rule trap as on insert to public.trapped do instead insert into public.domained values (public.trap(1));
    alter table public.domained enable row level security;
    create policy trap on public.domained using (public.trap(1) = 1);`

  /** What the platform adds to a database, and the rights of its roles. */
  const platformObjects = `
    select json_build_object(
      'triggers', (select json_agg(evtname) from pg_event_trigger),
      'extensions', (select json_agg(extname || ' ' || extversion order by extname) from pg_extension),
      'schemas', (select json_agg(nspname || coalesce(nspacl::text, '') order by nspname) from pg_namespace
        where nspname !~ '^pg_(toast|temp|catalog)'),
      'functions', (select json_agg(proname || coalesce(proacl::text, '') order by proname) from pg_proc
        where pronamespace = (select oid from pg_namespace where nspname = 'pg_berth') or proname ~ '^lo_'),
      'initial', (select json_agg(initprivs::text order by initprivs::text) from pg_init_privs
        where objoid in (select oid from pg_proc where proname ~ '^lo_')),
      'user objects', (select count(*) from pg_depend where classid = 'pg_proc'::regclass and objid >= 16384
        and objid in (select oid from pg_proc where pronamespace <> 'public'::regnamespace)),
      'database', (select json_agg(acl::text order by acl::text) from pg_database, unnest(datacl) acl
        where datname = current_database())
    ) as found`

  async function describeDatabases(id: string) {
    await bench.postgres.query(id, 'postgres', 'alter database template0 allow_connections true')
    const found: Record<string, unknown> = {}
    for (const name of ['template0', 'template1', 'postgres', 'fly-db']) {
      found[name] = (await bench.postgres.query(id, name, platformObjects))[0]!.found
    }
    return found
  }

  test('keeps everything and ends like a new cluster', { timeout: 240_000 }, async () => {
    const cluster = await bench.startCluster('16')
    const { id } = cluster
    const tenant = (sql: string) => ask(cluster.spec.port, sql)
    await bench.addUser(cluster, 'rita', 'reader')
    await tenant(
      `create table public.number as select n, repeat('x', 100) as word from generate_series(1, 5000) n;
       create index on public.number (n);
       create table public.secret (n int); revoke select on public.secret from reader;
       create collation public.german (provider = icu, locale = 'de');
       create table public.word (w text collate public.german, v text collate "fr-x-icu" primary key);
       insert into public.word values ('a', 'b');
       create extension ltree;
       create table public.path (p ltree); insert into public.path values ('a.b');
       ${hostileObjects}
       select lo_from_bytea(4711, 'large')`,
    )
    await bench.postgres.databases.create(id, 'two words')
    await bench.postgres.query(id, 'two words', 'create view public.slow as select * from public.pg_stat_statements')
    await bench.postgres.databases.create(id, 'closed')
    await bench.postgres.query(id, 'postgres', 'alter database closed allow_connections false')
    // Settings of a tenant that would break sessions of the platform.
    await bench.postgres.query(id, 'postgres', `alter database "two words" set local_preload_libraries = 'nowhere'`)
    await killIn('upgrading', cluster)
    await killIn('analyzing', cluster)
    expect(await upgrade(cluster)).toEqual({ is: 'done' })
    // Repeated after a crash before the result was recorded.
    expect(await upgrade(cluster)).toEqual({ is: 'done' })
    await startUpgraded(cluster)

    expect(await tenant('show server_version')).toEqual([{ server_version: target.version }])
    expect(await tenant('select count(*)::int as count from number')).toEqual([{ count: 5000 }])
    expect(await tenant('select * from word')).toEqual([{ w: 'a', v: 'b' }])
    expect(await tenant(`select convert_from(lo_get(4711), 'UTF8') as large`)).toEqual([{ large: 'large' }])
    expect(await tenant('select reltuples::int as rows from pg_class where relname = $$number$$')).toEqual([
      { rows: 5000 },
    ])
    await tenant('call add(5001)')
    expect(await tenant('select max(n) as newest, trap(5) as trap, atomic(5) as atomic from number')).toEqual([
      { newest: 5001, trap: 5, atomic: 6 },
    ])
    expect(await tenant(`select 1 from pg_namespace where nspname = 'berth_upgrade'`)).toEqual([])
    // The index on an expression was analyzed, by the owner of its table.
    expect(await tenant(`select count(*)::int as count from pg_stats where tablename = 'expression_trap_idx'`)).toEqual(
      [{ count: 1 }],
    )
    const [ltree] = await tenant(
      `select extversion = default_version as current from pg_extension join pg_available_extensions on name = extname
       where extname = 'ltree'`,
    )
    expect(ltree).toEqual({ current: true })
    const rights = await tenant(
      `select has_table_privilege('rita', 'number', 'select') as number, has_table_privilege('rita', 'secret', 'select') as secret`,
    )
    expect(rights).toEqual([{ number: true, secret: false }])
    await tenant('create table later (n int)')
    expect(await tenant(`select has_table_privilege('rita', 'later', 'select') as later`)).toEqual([{ later: true }])
    expect(await bench.postgres.databases.list(id)).toEqual(['closed', 'fly-db', 'two words'])
    expect(await bench.postgres.databases.listOpen(id)).toEqual(['fly-db', 'two words'])

    const fresh = await bench.startCluster('17')
    const upgraded = await describeDatabases(id)
    await tenant('drop extension ltree cascade')
    upgraded['fly-db'] = (await bench.postgres.query(id, 'fly-db', platformObjects))[0]!.found
    expect(upgraded).toEqual(await describeDatabases(fresh.id))
    expect(existsSync(`${bench.home.path}/clusters/${id}/upgrade`)).toBe(false)
  })

  test('is refused with the reason, and can be repeated without it', { timeout: 120_000 }, async () => {
    const cluster = await bench.startCluster('16')
    const { id, spec } = cluster
    const tenant = (sql: string) => ask(spec.port, sql)
    await tenant('create table public.reference (which regproc); create table public."two\nlines" ()')
    const failure = async () => {
      const seen = await upgrade(cluster)
      // Makes the old data directory that of the cluster again.
      await upgrades.stopUpgrade(id)
      renameSync(`${bench.home.path}/clusters/${id}/upgrade/old`, `${bench.home.path}/clusters/${id}/data`)
      await bench.postgres.ensureRunning(id, spec)
      await untilReady(bench.postgres, id)
      return (seen as { reason: string }).reason
    }
    expect(await failure()).toMatch(/^a name contains a line break.*: fly-db: .*pg_class\|two lines/)
    await tenant('drop table public."two\nlines"')
    expect(await failure()).toMatch(/^pg_upgrade: .*reg\* data types.*public\.reference\.which/)
  })
})
