// What drivers, ORMs and test runners do with a cluster, through both endpoints.
import { execFileSync } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import {
  type Access,
  accessOf,
  ask,
  connect,
  destroy,
  readyCluster,
  untilReady,
  type Way,
  ways,
} from '../../support/client.ts'
import { removeDirectory } from '../../support/directory.ts'
import { makeInstallation } from '../../support/fake/installation.ts'
import { until } from '../../support/until.ts'

const directory = mkdtempSync(join(tmpdir(), 'berth-installation-'))
let berth: Berth
const [poolerMinor] = /(?<=^PgBouncer 1\.)\d+/.exec(
  execFileSync('/usr/sbin/pgbouncer', ['--version'], { encoding: 'utf8' }),
)!
const poolerReadsOptions = Number(poolerMinor) >= 20

let id: string
let access: Access

const call = (method: string, rest = '', body?: object) => berth.call(method, `/v1/postgres/${id}${rest}`, body)
const listed = async () => (await call('GET', '/databases')).body.data.map(({ name }: { name: string }) => name)

beforeAll(async () => {
  berth = new Berth({ BERTH_DRILL_INTERVAL: 'off', BERTH_PG17_BIN: makeInstallation(directory, '17') })
  await berth.up()
  id = await readyCluster(berth, {
    pg_major_version: '17',
    pool_mode: 'transaction',
    postgis_enabled: true,
    retention_days: 3,
  })
  access = await accessOf(berth, id)
}, 240_000)

afterAll(async () => {
  if (berth) await destroy(berth)
  await removeDirectory(directory)
})

/** Connects with exactly these startup parameters, besides those that every driver sends. */
async function start(way: Way, parameters: Record<string, string>): Promise<pg.Client> {
  const { user, password } = access
  const client = new pg.Client({ ...access[way], user, password, database: 'fly-db', connectionTimeoutMillis: 15_000 })
  Object.assign(client, { getStartupConf: () => ({ user, database: 'fly-db', ...parameters }) })
  client.on('error', () => undefined)
  await client.connect()
  return client
}

describe.each(ways)('through the %s endpoint', (way) => {
  test.each<[string, Record<string, string>]>([
    [
      'psycopg and Django',
      { client_encoding: 'UTF8', options: '-c client_min_messages=warning -c TimeZone=Asia/Tokyo' },
    ],
    ['libpq with its environment variables', { DateStyle: 'ISO, DMY', TimeZone: 'Asia/Tokyo', geqo: 'on' }],
    ['asyncpg', { application_name: 'a', search_path: 'public', jit: 'off', client_min_messages: 'notice' }],
    [
      'node-postgres',
      { statement_timeout: '60000', lock_timeout: '1000', idle_in_transaction_session_timeout: '60000' },
    ],
    [
      'pgx',
      { search_path: 'public', standard_conforming_strings: 'on', default_transaction_isolation: 'serializable' },
    ],
    ['JDBC', { DateStyle: 'ISO', TimeZone: 'Europe/Berlin', extra_float_digits: '2', search_path: 'public' }],
    ['Npgsql and others', { IntervalStyle: 'iso_8601', default_transaction_read_only: 'off', bytea_output: 'hex' }],
  ])('the startup parameters of %s are accepted', async (_driver, parameters) => {
    const client = await start(way, parameters)
    try {
      const { rows } = await client.query(`select current_setting('TimeZone') as zone, current_user::text as acting`)
      // The pooler applies the parameters that PgBouncer tracks, and PgBouncer 1.20 and newer also finds them in `options`.
      const inOptions = poolerReadsOptions ? /TimeZone=(\S+)/.exec(parameters.options ?? '')?.[1] : undefined
      const zone = way === 'pooler' ? (parameters.TimeZone ?? inOptions ?? 'UTC') : expect.any(String)
      expect(rows).toEqual([{ zone, acting: 'schema_admin' }])
    } finally {
      await client.end()
    }
  })

  test('a test runner creates a database, copies it for parallel tests, and drops both', async () => {
    const runner = await connect(access, way, { database: 'postgres' })
    try {
      await runner.query(`create database test_shop encoding 'UTF8'`)
      expect(await listed()).toEqual(['fly-db', 'test_shop'])
      const inTest = { database: 'test_shop' }
      await ask(access, way, 'create table item (id serial primary key, name text)', inTest)
      await ask(access, way, `insert into item (name) values ('one')`, inTest)
      await runner.query('create database test_shop_1 template test_shop')
      expect(await ask(access, way, 'select name from item', { database: 'test_shop_1' })).toEqual([{ name: 'one' }])
      await runner.query('drop database test_shop_1')
      await runner.query('drop database if exists test_shop')
      expect(await listed()).toEqual(['fly-db'])
    } finally {
      await runner.end()
    }
  })

  test('the users of the cluster have their rights in a database that was created in SQL', async () => {
    await ask(access, way, 'create database made', { database: 'postgres' })
    await call('POST', '/users', { username: 'reporting', role: 'reader' })
    const reporting = await accessOf(berth, id, 'reporting')
    await ask(access, way, 'create table item as select 1 as id', { database: 'made' })
    expect(await ask(reporting, way, 'select id from item', { database: 'made' })).toEqual([{ id: 1 }])
    await expect(ask(reporting, way, 'create database evil')).rejects.toThrow('permission denied')
    expect((await call('DELETE', '/databases/made')).status).toBe(200)
  })

  test('PostGIS is enabled in the first database, and other extensions of the installation can be', async () => {
    expect(await ask(access, way, 'select postgis_version() as version')).toEqual([{ version: '3.5 stand-in' }])
    await call('POST', '/databases/fly-db/extensions', { name: 'vector' })
    expect(await ask(access, way, `select '{1,2}'::vector as v`)).toEqual([{ v: [1, 2] }])
    expect(await call('POST', '/databases/fly-db/extensions', { name: 'hypopg' })).toMatchObject({
      status: 422,
      body: { error: expect.stringContaining('postgresql-17-hypopg') },
    })
  })
})

test('a database that was created in SQL is backed up, and a restored cluster keeps the retention', async () => {
  await ask(access, 'direct', 'create database kept template template0', { database: 'postgres' })
  await ask(access, 'direct', 'create table item as select 7 as id', { database: 'kept' })
  const written = Date.now()
  const show = async () => (await call('GET')).body.data
  await until(async () => Date.parse((await show()).recovery_window?.latest ?? 0) > written, 120)
  const { data } = (await call('POST', '/fork', {})).body
  expect(data.retention_days).toBe(3)
  await untilReady(berth, data.id)
  const restored = await accessOf(berth, data.id)
  for (const way of ways) {
    expect(await ask(restored, way, 'select id from item', { database: 'kept' })).toEqual([{ id: 7 }])
    expect(await ask(restored, way, 'select postgis_version() is not null as present')).toEqual([{ present: true }])
  }
})

test('the retention is changed with the command line', async () => {
  const { stdout } = await berth.cli('postgres', 'update', id, '--retention', '14d', '--json')
  expect(JSON.parse(stdout).data.retention_days).toBe(14)
})
