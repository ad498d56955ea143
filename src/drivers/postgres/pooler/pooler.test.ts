import { expect, test } from 'vitest'
import { findPlan } from '../../../model/postgres/plan.ts'
import type { PoolerSpec } from '../../../model/postgres/spec.ts'
import type { ClusterPaths } from '../paths.ts'
import { renderPooler } from './pooler.ts'

const paths = { pooler: '/c/pooler', tls: '/c/tls', sockets: "/run/it's" } as ClusterPaths
const spec: PoolerSpec = {
  plan: findPlan('launch')!,
  poolMode: 'transaction',
  databases: ['fly-db', 'shop'],
  listen: '127.0.0.1',
  port: 15_001,
  postgresPort: 15_000,
}

const linesOf = (change: Partial<PoolerSpec> = {}, version = [1, 18]) =>
  renderPooler(paths, { ...spec, ...change }, version).split('\n')

test('takes its limits from the plan', () => {
  expect(linesOf()).toEqual(
    expect.arrayContaining([
      'max_client_conn = 500',
      'default_pool_size = 150',
      'reserve_pool_size = 30',
      'max_db_connections = 180',
      'pool_mode = transaction',
    ]),
  )
})

test('lists each database, and allows all names only if the file cannot contain one of them', () => {
  const server = "host='/run/it''s' port=15000 auth_user=berth_pooler"
  expect(linesOf().slice(0, 4)).toEqual(['[databases]', `fly-db = ${server}`, `shop = ${server}`, ''])
  expect(linesOf({ databases: ['fly-db', 'a b', 'ü'] }).slice(1, 4)).toEqual([
    `fly-db = ${server}`,
    `* = ${server}`,
    '',
  ])
})

test('enables prepared statements if PgBouncer supports them', () => {
  expect(linesOf({}, [1, 18]).join()).not.toContain('max_prepared_statements')
  expect(linesOf({}, [1, 21])).toContain('max_prepared_statements = 200')
})
