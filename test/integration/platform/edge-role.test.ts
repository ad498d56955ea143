import { createHash } from 'node:crypto'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type Database, openDatabase } from '../../../src/store/db.ts'
import {
  type EdgeCommand,
  performEdgeRequest,
  requestFromEdge,
  takeEdgeRequests,
} from '../../../src/store/edge-request.ts'
import { ensureEdgeRole } from '../../../src/store/edge-role.ts'
import { edgeUser, useDatabase } from '../../support/db.ts'

const database = useDatabase()
let edge: Database

beforeAll(async () => {
  await ensureEdgeRole(database.db, { name: edgeUser, verifier: null })
  edge = openDatabase({ ...database.config, user: edgeUser })
})

afterAll(() => edge?.close())

const rows = async (sql: string, values: unknown[] = []) => (await database.db.query(sql, values)).rows

/** The message of the error that a statement of the edge causes. */
const refusal = (sql: string): Promise<string> =>
  edge.query(sql).then(
    () => `allowed: ${sql}`,
    (error: Error) => error.message,
  )

describe('the role of the edge', () => {
  test('has no attribute that widens its rights, and belongs to no other role', async () => {
    const [role] = await rows('select * from pg_roles where rolname = $1', [edgeUser])
    for (const name of ['rolsuper', 'rolcreatedb', 'rolcreaterole', 'rolinherit', 'rolreplication', 'rolbypassrls']) {
      expect(role[name], name).toBe(false)
    }
    expect(
      await rows('select 1 from pg_auth_members where member = $1::regrole or roleid = $1::regrole', [edgeUser]),
    ).toEqual([])
  })

  test('can read exactly these columns', async () => {
    const readable = await rows(
      `select relname || '(' || string_agg(attname, ' ' order by attname) || ')' as columns
       from pg_class join pg_attribute on attrelid = pg_class.oid and attnum > 0 and not attisdropped
       where relnamespace = 'public'::regnamespace and relkind in ('r', 'v', 'm', 'p', 'f')
         and has_column_privilege($1, pg_class.oid, attnum, 'select')
       group by relname order by relname`,
      [edgeUser],
    )
    expect(readable.map(({ columns }) => columns)).toEqual([
      'app(enable_subdomains id name network org_id state)',
      'attachment(app_id cluster_id)',
      'certificate(app_id fullchain hostname private_key source)',
      'cluster(direct_port id number org_id pooler_port scratch state)',
      'host(app_id hostname)',
      'ip(app_id ip network_number shared type)',
      'machine_check(machine_id name status)',
      'machine_load(at load machine_id)',
      'machine_route(app_id autostarts checks cordoned id instance_id listed metadata network_number region services slot state state_since)',
      'network(name number org_id)',
      'org(cross_network_replays id)',
      'sandbox(id name org_id private_access slot state url_auth)',
      'service(failure health http_port name ready_at sandbox_id wanted)',
    ])
  })

  test('can write to no table, sequence or schema', async () => {
    const writable = await rows(
      `select relname, right_name from pg_class,
         unnest(array['insert', 'update', 'delete', 'truncate', 'references', 'trigger']) right_name
       where relnamespace in ('public'::regnamespace, 'pg_catalog'::regnamespace) and relkind in ('r', 'v', 'm', 'p', 'f')
         and (has_table_privilege($1, pg_class.oid, right_name) or (right_name in ('insert', 'update', 'references')
           and has_any_column_privilege($1, pg_class.oid, right_name)))
         and not (relname = 'pg_settings' and right_name = 'update')`,
      [edgeUser],
    )
    expect(writable).toEqual([])
    const [more] = await rows(
      `select (select count(*) from pg_class where relnamespace = 'public'::regnamespace
           and case relkind when 'S' then has_sequence_privilege($1, oid, 'usage, update, select') end)::int as sequences,
         has_schema_privilege($1, 'public', 'create') as "inSchema",
         has_database_privilege($1, current_database(), 'create, temporary') as "inDatabase"`,
      [edgeUser],
    )
    expect(more).toEqual({ sequences: 0, inSchema: false, inDatabase: false })
  })

  test('can call exactly these functions of ours', async () => {
    const callable = await rows(
      `select proname from pg_proc where pronamespace = 'public'::regnamespace
         and has_function_privilege($1, oid, 'execute') order by proname`,
      [edgeUser],
    )
    expect(callable.map(({ proname }) => proname)).toEqual([
      'find_token_for_edge',
      'list_token_expiries_for_edge',
      'put_machine_loads',
      'request_from_edge',
    ])
    // A function with the rights of its owner must not find objects that its caller has created.
    const open = await rows(
      `select proname from pg_proc where pronamespace = 'public'::regnamespace and prosecdef
         and not coalesce(proconfig, '{}') @> array['search_path=public, pg_temp']`,
    )
    expect(open).toEqual([])
  })

  test.each([
    'select hash from token',
    'select * from token',
    'select id from token',
    'select value from secret',
    'select key from secret_key',
    'select password from cluster_user',
    'select answer from idempotency',
    'select config from machine',
    'select secrets from machine',
    'select environment from sandbox',
    'select definition from service',
    'select * from work',
    'select * from edge_request',
    'select * from migration',
    'select rolpassword from pg_authid',
    'select * from pg_shadow',
    'select * from pg_user_mapping',
    `select pg_read_file('PG_VERSION')`,
    `select pg_read_binary_file('/etc/passwd')`,
    `select pg_ls_dir('.')`,
    'select * from pg_hba_file_rules',
    `copy org to program 'id'`,
    `copy org to '/tmp/org'`,
    `create table own (id int)`,
    'create temporary table own (id int)',
    'create schema own',
    `create function own() returns int language sql as 'select 1'`,
    'create extension dblink',
    `create role own superuser`,
    `alter role ${edgeUser} superuser`,
    `alter system set log_statement = 'all'`,
    'set role berth',
    'set session authorization berth',
    `set session_preload_libraries = 'x'`,
    `load 'plpgsql'`,
    'grant select on token to berth_edge',
    'alter view machine_route owner to berth_edge',
    'create or replace view machine_route as select 1 as id',
    `insert into token (id, hash, kind) values ('x', 'x', 'root')`,
    `insert into machine_load values ('x', '0', 1)`,
    `insert into edge_request values ('wake_machine', 'x')`,
    `update machine set state = 'started'`,
    `update sandbox set url_auth = 'public'`,
    `update certificate set private_key = ''`,
    'delete from host',
    'truncate org cascade',
    'select lo_create(0)',
    `select lo_from_bytea(0, 'x')`,
    'select pg_advisory_lock(1)',
    'select pg_try_advisory_xact_lock(1)',
    "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'berth'",
    'select pg_reload_conf()',
    'select pg_stat_reset()',
    `select notify_app_route()`,
    `do $$ begin lock table app in access exclusive mode; end $$`,
    'drop view machine_route',
    'comment on table app is null',
    `select query_to_xml('select hash from token', true, true, '')`,
    `do language plpgsql $$ begin perform hash from token; end $$`,
  ])('is refused: %s', async (sql) => {
    expect(await refusal(sql)).toMatch(/permission denied|must be (owner|superuser)|only roles with|access to library/i)
  })

  test('keeps the same rights when they are granted again', async () => {
    const acls = () =>
      rows(`select relname, relacl::text from pg_class where relnamespace = 'public'::regnamespace order by 1`)
    const before = await acls()
    await ensureEdgeRole(database.db, { name: edgeUser, verifier: null })
    expect(await acls()).toEqual(before)
  })
})

describe('what the edge sees and requests', () => {
  const service = { internal_port: 80, protocol: 'tcp', ports: [{ port: 80 }] }

  beforeEach(async () => {
    await database.db.query('truncate org, app, network, machine, sandbox, box_slot, token, work, edge_request cascade')
    await database.db.query(`insert into org (id, slug, name) values ('acme', 'acme', 'acme')`)
    await database.db.query(
      `insert into app (id, org_id, name, network, enable_subdomains) values ('web', 'acme', 'web', 'default', false)`,
    )
  })

  async function machine(state: string, config: object, cordoned = false): Promise<void> {
    await database.db.query(
      `with net as (insert into network (org_id, name) values ('acme', 'default') returning number)
       insert into machine (id, app_id, name, state, region, instance_id, config, network_number, wanted, slot, cordoned)
       select 'm1', 'web', 'm1', $1, 'local', 'v1', $2, number, false, 1, $3 from net`,
      [state, { image: 'none', env: { PASSWORD: 'hidden' }, ...config }, cordoned],
    )
  }

  async function request(command: EdgeCommand, id = 'm1'): Promise<string | undefined> {
    await requestFromEdge(edge, command, id)
    for (const each of await takeEdgeRequests(database.db)) await performEdgeRequest(database.db, each)
    return (await rows('select state from machine union all select state from sandbox'))[0]?.state
  }

  test('a machine is shown without environment and without the headers of its checks', async () => {
    const check = { type: 'http', port: 80, headers: [{ name: 'Authorization', values: ['hidden'] }] }
    await machine('started', {
      services: [{ ...service, checks: [check] }],
      checks: { alive: check },
      metadata: { a: 'b' },
    })
    const { rows: found } = await edge.query('select services, checks, metadata, autostarts, listed from machine_route')
    expect(JSON.stringify(found)).not.toContain('hidden')
    expect(found[0]).toMatchObject({
      services: [{ internal_port: 80, checks: [{ type: 'http', port: 80 }] }],
      checks: { alive: { type: 'http', port: 80 } },
      metadata: { a: 'b' },
      autostarts: true,
      listed: true,
    })
  })

  test('a machine without services and checks is shown too', async () => {
    await machine('started', { disable_machine_autostart: true, dns: { skip_registration: true } })
    const { rows: found } = await edge.query('select * from machine_route')
    expect(found).toMatchObject([{ services: [], checks: null, metadata: {}, autostarts: false, listed: false }])
  })

  test('a token is found by its hash while it is valid', async () => {
    const hash = createHash('sha256').update('berth_x').digest()
    await database.db.query(`insert into token (id, hash, kind, org_id) values ('t', $1, 'org', 'acme')`, [hash])
    const find = async () => (await edge.query('select * from find_token_for_edge($1)', [hash])).rows
    expect(await find()).toEqual([{ token_id: 't', token_kind: 'org', token_org: 'acme', token_sandbox: null }])
    await database.db.query('update token set expires_at = now()')
    expect(await find()).toEqual([])
    await database.db.query('update token set expires_at = null, revoked_at = now()')
    expect(await find()).toEqual([])
  })

  test.each<[string, EdgeCommand, string, object, boolean, string]>([
    ['a stopped machine is started', 'wake_machine', 'stopped', { services: [service] }, false, 'starting'],
    ['a suspended machine is started', 'wake_machine', 'suspended', { services: [service] }, false, 'starting'],
    ['a machine without services is not started', 'wake_machine', 'stopped', {}, false, 'stopped'],
    ['a cordoned machine is not started', 'wake_machine', 'stopped', { services: [service] }, true, 'stopped'],
    [
      'a machine whose owner turned autostart off is not started',
      'wake_machine',
      'stopped',
      { services: [{ ...service, autostart: false }] },
      false,
      'stopped',
    ],
    [
      'a machine with autostart off in its config is not started',
      'wake_machine',
      'stopped',
      { services: [service], disable_machine_autostart: true },
      false,
      'stopped',
    ],
    [
      'a machine that stands by for another is not started',
      'wake_machine',
      'stopped',
      { services: [service], standbys: ['m2'] },
      false,
      'stopped',
    ],
    ['a started machine stays', 'wake_machine', 'started', { services: [service] }, false, 'started'],
    ['a machine without autostop is not stopped', 'stop_machine', 'started', { services: [service] }, false, 'started'],
    [
      'a machine with autostop off is not stopped',
      'stop_machine',
      'started',
      { services: [{ ...service, autostop: 'off' }] },
      false,
      'started',
    ],
    [
      'a machine with autostop is stopped',
      'stop_machine',
      'started',
      { services: [{ ...service, autostop: true }] },
      false,
      'stopping',
    ],
    [
      'a machine is suspended if its owner wants that',
      'suspend_machine',
      'started',
      { services: [{ ...service, autostop: 'suspend' }] },
      false,
      'suspending',
    ],
    [
      'a machine is stopped instead of suspended if its owner wants that',
      'suspend_machine',
      'started',
      { services: [{ ...service, autostop: 'stop' }] },
      false,
      'stopping',
    ],
  ])('%s', async (_title, command, state, config, cordoned, after) => {
    await machine(state, config, cordoned)
    expect(await request(command)).toBe(after)
  })

  test('a cold sandbox is woken, and a request for a deleted one has no effect', async () => {
    await database.db.query(
      `insert into sandbox (id, org_id, name, slot, state, url_auth, private_access, labels, environment, memory_mb, cpus,
         storage_gb, region) values ('s1', 'acme', 's1', 1, 'cold', 'public', 'admins', '{}', '{}', 512, 1, 1, 'local')`,
    )
    expect(await request('wake_sandbox', 's1')).toBe('running')
    await database.db.query(`update sandbox set state = 'deleting'`)
    expect(await request('wake_sandbox', 's1')).toBe('deleting')
  })

  test('requests for unknown resources and unknown commands leave nothing behind', async () => {
    await machine('stopped', { services: [service] })
    await requestFromEdge(edge, 'wake_machine', 'unknown')
    await requestFromEdge(edge, 'wake_sandbox', 'm1')
    await expect(requestFromEdge(edge, 'destroy_machine' as EdgeCommand, 'm1')).rejects.toThrow(/check constraint/)
    for (let count = 0; count < 3; count++) await requestFromEdge(edge, 'wake_machine', 'm1')
    expect(await rows('select command, resource_id from edge_request')).toEqual([
      { command: 'wake_machine', resource_id: 'm1' },
    ])
  })

  test('a request that waited too long is dropped', async () => {
    await machine('stopped', { services: [service] })
    await requestFromEdge(edge, 'wake_machine', 'm1')
    await database.db.query(`update edge_request set requested_at = now() - interval '1 minute'`)
    expect(await takeEdgeRequests(database.db)).toEqual([])
    expect(await rows('select 1 from edge_request')).toEqual([])
  })

  test('loads of unknown machines, unknown workers and negative loads are ignored', async () => {
    await machine('started', { services: [service] })
    const put = (worker: number, id: string, load: number) =>
      edge.query('select put_machine_loads($1, $2, $3)', [worker, [id], [load]])
    await put(0, 'm1', 5)
    await put(64, 'm1', 5)
    await put(-1, 'm1', 5)
    await put(1, 'm1', -5)
    await put(1, 'unknown', 5)
    expect(await rows('select machine_id, worker, load from machine_load')).toEqual([
      { machine_id: 'm1', worker: '0', load: 5 },
    ])
  })
})
