import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { sessionOptions } from '../../../src/drivers/postgres/sql/connection.ts'
import { ask, type ClusterBench, connect, openBench, type TestCluster } from '../../support/cluster.ts'

/**
 * Settings of a tenant that a session of the platform keeps: they change how fast it works and how much memory it takes,
 * within the limits of the cluster, but neither what its statements mean nor what they print.
 */
const harmless = new RegExp(
  `^(${[
    'enable_\\w+|jit\\w*|geqo\\w*|\\w+_cost|vacuum_\\w+|\\w+_(mem|buffers|concurrency|limit|flush_after|multiplier)',
    '(max|min)_parallel_\\w+|(from|join)_collapse_limit|tcp_\\w+|debug_\\w+|trace_\\w+|lc_\\w+|xml\\w+|\\w+_factor',
    'effective_cache_size|commit_siblings|constraint_exclusion|cursor_tuple_fraction|default_statistics_target',
    'default_toast_compression|default_text_search_config|client_connection_check_interval|createrole_self_grant',
    'escape_string_warning|icu_validation_level|log_parameter_max_length_on_error|parallel_leader_participation',
    'password_encryption|plan_cache_mode|restrict_nonsystem_relation_kind|scram_iterations|stats_fetch_consistency',
    'synchronize_seqscans|synchronous_commit|timezone_abbreviations|wal_(sender_timeout|skip_threshold)|work_mem',
    'cpu_\\w+|gin_\\w+|application_name',
  ].join('|')})$`,
)

describe.each(['16', '17'] as const)('a session of the platform in a database of PostgreSQL %s', (major) => {
  let bench: ClusterBench
  let cluster: TestCluster

  beforeAll(async () => {
    bench = await openBench()
    cluster = await bench.startCluster(major)
    await bench.postgres.databases.create(cluster.id, 'trap')
  }, 120_000)

  afterAll(() => bench?.remove())

  const trap = (sql: string) => ask(cluster.spec.port, sql, { database: 'trap' })

  /** Attaches a setting to the database, as its owner. The block loads plpgsql, which defines settings of its own. */
  const attach = (name: string, value: string) =>
    ask(cluster.spec.port, `do $$ begin end $$; alter database trap set ${name} = '${value}'`).catch((cause) => {
      throw new Error(`set ${name} to ${value}`, { cause })
    })

  /** Runs a query of the platform in a new session. */
  async function platform(sql: string): Promise<Record<string, string>[]> {
    await bench.postgres.closeConnections(cluster.id, 'trap')
    return bench.postgres.query(cluster.id, 'trap', sql)
  }

  /** A value other than the current one. */
  const otherValue = `case
    when name = 'application_name' or name = 'search_path' then 'evil'
    when name in ('local_preload_libraries', 'default_tablespace', 'temp_tablespaces') then ''
    when name = 'client_encoding' then 'LATIN1'
    when name = 'DateStyle' then 'German, DMY'
    when name = 'TimeZone' then 'Asia/Tokyo'
    when name = 'restrict_nonsystem_relation_kind' then 'view'
    when vartype = 'bool' then case setting when 'on' then 'off' else 'on' end
    when vartype = 'enum' then coalesce((select value from unnest(enumvals) value where value <> setting limit 1), setting)
    when vartype in ('integer', 'real') then case when setting = max_val then min_val else max_val end
    else setting end`

  test('keeps only settings of a tenant that do not matter', async () => {
    const changed = await trap(
      `select name, ${otherValue} as value from pg_settings
       where context = 'user' and name !~ '^transaction_(isolation|read_only|deferrable)$'`,
    )
    expect(changed.length).toBeGreaterThan(130)
    for (const { name, value } of changed) await attach(String(name), String(value))
    await attach('plpgsql.extra_errors', 'all')
    const kept = await platform(
      `select name, setting from pg_catalog.pg_settings where source in ('database', 'user', 'database user')`,
    )
    expect(kept.length).toBeGreaterThan(50)
    expect(kept.filter(({ name }) => !harmless.test(name!))).toEqual([])
    const defaults = await bench.postgres.query<Record<string, string>>(
      cluster.id,
      'postgres',
      'select name, setting from pg_catalog.pg_settings',
    )
    const now = await platform('select name, setting from pg_catalog.pg_settings')
    const different = now.filter(
      ({ name, setting }) => defaults.find((other) => other.name === name)?.setting !== setting,
    )
    expect(different.filter(({ name }) => !harmless.test(name!))).toEqual([])
    // Nothing of this keeps the platform from its work.
    expect((await bench.postgres.extensions.list(cluster.id, 'trap')).length).toBeGreaterThan(20)
    await bench.postgres.extensions.enable(cluster.id, 'trap', 'citext')
    await bench.postgres.extensions.enable(cluster.id, 'trap', 'dblink')
  }, 60_000)

  test('belongs to the superuser, whatever user a tenant chooses for it', async () => {
    for (const name of ['role', 'session_authorization']) {
      await attach(name, 'fly-user')
      const [user] = await platform(`select session_user || ' ' || current_user as who`)
      expect(user).toEqual({ who: 'postgres postgres' })
    }
  })

  test('loads no library and resolves no name of a tenant', async () => {
    for (const library of ['nowhere', 'plpgsql']) {
      await attach('local_preload_libraries', library)
      expect(await platform('select 1 as one')).toEqual([{ one: 1 }])
    }
    const shown = await platform(
      `select name, setting from pg_catalog.pg_settings where name ~ '^(search_path|.*preload_libraries)$' order by 1`,
    )
    expect(shown).toEqual([
      { name: 'local_preload_libraries', setting: '' },
      { name: 'search_path', setting: '' },
      { name: 'session_preload_libraries', setting: '' },
      { name: 'shared_preload_libraries', setting: 'pg_stat_statements' },
    ])
  })

  test('runs no event trigger, except to share what an extension creates', async () => {
    if (major === '16') {
      // This version cannot disable them, but only superusers can create one.
      expect(sessionOptions(major, { statementMs: 0, lockMs: 0 })).not.toContain('event_triggers')
    } else {
      expect(await platform('show event_triggers')).toEqual([{ event_triggers: 'off' }])
    }
    await ask(cluster.spec.port, 'alter database trap reset all')
    await trap(`create function public.fire() returns event_trigger language plpgsql as 'begin raise $$fired$$; end'`)
    for (const event of ['ddl_command_start', 'sql_drop', 'table_rewrite', ...(major === '17' ? ['login'] : [])]) {
      await expect(trap(`create event trigger evil on ${event} execute function public.fire()`)).rejects.toThrow(
        'permission denied to create event trigger',
      )
    }
    await trap('drop function public.fire')
  })

  test('ignores casts, operators and functions that a tenant defines for its own types', async () => {
    const client = await connect(cluster.spec.port, { database: 'trap' })
    try {
      await client.query(
        `create schema evil;
         create type evil.name as (x text);
         create function evil.boom(evil.name) returns text language plpgsql as $$ begin raise 'ran as %', current_user; end $$;
         create function evil.boom(text, text) returns bool language plpgsql as $$ begin raise 'ran as %', current_user; end $$;
         create cast (evil.name as text) with function evil.boom(evil.name) as implicit;
         create operator evil.= (leftarg = text, rightarg = text, function = evil.boom);
         create operator evil.~ (leftarg = text, rightarg = text, function = evil.boom);
         create operator public.= (leftarg = text, rightarg = text, function = evil.boom);
         create function public.set_config(text, text, boolean) returns text language sql as 'select evil.boom($1, $2)::text';
         alter database trap set search_path = evil, public, pg_catalog`,
      )
      await expect(client.query('create cast (text as name) with inout as implicit')).rejects.toThrow('must be owner')
      await expect(
        client.query('create function pg_catalog.lower(unknown) returns text language sql as $$$$'),
      ).rejects.toThrow('permission denied for schema pg_catalog')
    } finally {
      await client.end()
    }
    expect((await bench.postgres.extensions.list(cluster.id, 'trap')).length).toBeGreaterThan(20)
    await bench.postgres.extensions.enable(cluster.id, 'trap', 'earthdistance')
    await bench.postgres.extensions.enable(cluster.id, 'trap', 'amcheck', { schema: 'evil' })
    await bench.postgres.extensions.disable(cluster.id, 'trap', 'earthdistance', { cascade: true })
    await bench.addUser(cluster, 'leaver', 'schema_admin')
    await ask(cluster.spec.port, 'create table evil.kept (id int)', { user: 'leaver', database: 'trap' })
    await bench.postgres.users.setRole(cluster.id, { name: 'leaver', role: 'reader' })
    await bench.postgres.users.drop(cluster.id, 'leaver')
    await bench.postgres.databases.drop(cluster.id, 'trap')
  })
})
