import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { findPlan } from '../../../model/postgres/plan.ts'
import type { PoolerSpec } from '../../../model/postgres/spec.ts'
import type { ClusterPaths } from '../paths.ts'
import { ignoredParameters, renderPooler, trackedParameters } from './render.ts'

const paths = { pooler: '/c/pooler', tls: '/c/tls', sockets: "/run/it's" } as ClusterPaths
const spec: PoolerSpec = {
  plan: findPlan('launch')!,
  poolMode: 'transaction',
  listen: '127.0.0.1',
  port: 15_001,
  postgresPort: 15_000,
}
const debian12 = [1, 18]
const debian13 = [1, 24]

const linesOf = (change: Partial<PoolerSpec> = {}, version = debian12) =>
  renderPooler(paths, { ...spec, ...change }, version).split('\n')
const settingOf = (name: string, version: number[], change: Partial<PoolerSpec> = {}) =>
  linesOf(change, version)
    .find((line) => line.startsWith(`${name} = `))
    ?.slice(name.length + 3)

test('takes its limits from the plan, for one user in all databases as for one database', () => {
  expect(linesOf()).toEqual(
    expect.arrayContaining([
      'max_client_conn = 500',
      'default_pool_size = 150',
      'reserve_pool_size = 30',
      'max_db_connections = 180',
      'max_user_connections = 180',
      'berth_pooler = max_user_connections=3',
      'pool_mode = transaction',
    ]),
  )
})

test('serves every database, also one that was created in SQL', () => {
  const server = "host='/run/it''s' port=15000 auth_user=berth_pooler"
  expect(linesOf().slice(0, 3)).toEqual(['[databases]', `* = ${server}`, ''])
})

test('looks up passwords in the database of the platform if PgBouncer supports that', () => {
  expect(settingOf('auth_dbname', debian13)).toBe('postgres')
  expect(settingOf('query_wait_timeout', debian13)).toBeUndefined()
  expect(settingOf('auth_dbname', debian12)).toBeUndefined()
  expect(settingOf('query_wait_timeout', debian12)).toBe('15')
})

test('enables prepared statements if PgBouncer supports them', () => {
  expect(settingOf('max_prepared_statements', debian12)).toBeUndefined()
  expect(settingOf('max_prepared_statements', [1, 21])).toBe('200')
})

test('resets a session between two clients, and keeps prepared statements that PgBouncer knows', () => {
  for (const version of [debian12, debian13]) {
    expect(settingOf('server_reset_query_always', version)).toBe('1')
    expect(settingOf('server_reset_query', version, { poolMode: 'session' })).toBe('DISCARD ALL')
  }
  expect(settingOf('server_reset_query', debian12)).toBe('DISCARD ALL')
  const reset = settingOf('server_reset_query', debian13)
  expect(reset).toMatch(/RESET ROLE; RESET ALL; .*pg_advisory_unlock_all/)
  expect(reset).not.toMatch(/DEALLOCATE|DISCARD (ALL|PLANS)/)
})

test('accepts the startup parameters of drivers, and applies those that PgBouncer can apply', () => {
  const ignored = (version: number[]) => settingOf('ignore_startup_parameters', version)!.split(',')
  for (const name of ['options', 'extra_float_digits', 'search_path', 'client_min_messages', 'statement_timeout']) {
    expect(ignored(debian12)).toContain(name)
    expect(ignored(debian13)).toContain(name)
  }
  expect(ignored(debian12)).toEqual(expect.arrayContaining(['IntervalStyle', 'intervalstyle']))
  expect(ignored(debian13)).not.toContain('IntervalStyle')
  expect(settingOf('track_extra_parameters', debian12)).toBeUndefined()
  expect(settingOf('track_extra_parameters', debian13)).toBe('IntervalStyle,default_transaction_read_only')
  // Ignoring these would give a client other rights than it asked for, or another protocol.
  for (const name of ['role', 'session_authorization', 'replication']) expect(ignored(debian12)).not.toContain(name)
})

test('is documented with every parameter that it ignores or tracks', () => {
  const text = readFileSync(new URL('../../../../docs/postgres.md', import.meta.url), 'utf8')
  const section = /\*\*Startup parameters\.\*\*(.*?)\n- /s.exec(text)![1]
  for (const name of [...ignoredParameters, ...trackedParameters]) expect(section).toContain(`\`${name}\``)
})
