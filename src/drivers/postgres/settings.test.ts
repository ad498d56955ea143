import { expect, test } from 'vitest'
import { findPlan, plans } from '../../model/postgres/plan.ts'
import {
  clusterSettings,
  renderAccess,
  renderIdentities,
  renderSettings,
  type SettingsInput,
  splitSettings,
} from './settings.ts'

const input: SettingsInput = {
  id: 'abcdefgh01234567',
  plan: findPlan('basic')!,
  hostMemoryMb: 32_768,
  diskSizeGb: 10,
  listen: '127.0.0.1',
  port: 15_000,
  socketDirectory: '/run/x',
  tlsDirectory: '/tls',
  accessFile: '/pg_hba.conf',
  identityFile: '/pg_ident.conf',
  hasStatements: true,
  hasJit: false,
}

function settingsOf(plan: string, change: Partial<SettingsInput> = {}) {
  return clusterSettings({ ...input, plan: findPlan(plan)!, ...change })
}

test('derives memory from the plan', () => {
  expect(settingsOf('basic')).toMatchObject({
    shared_buffers: '192MB',
    effective_cache_size: '768MB',
    work_mem: '6MB',
    maintenance_work_mem: '64MB',
    max_connections: '76',
  })
  expect(settingsOf('launch')).toMatchObject({ shared_buffers: '1984MB', work_mem: '17MB', max_connections: '196' })
})

test('gives a small plan small tables, because PostgreSQL touches all of them at start', () => {
  const small = { wal_buffers: '1MB', 'pg_stat_statements.max': '1024', max_prepared_transactions: '25' }
  expect(settingsOf('basic')).toMatchObject(small)
  expect(settingsOf('scale')).toMatchObject({ wal_buffers: '16MB', 'pg_stat_statements.max': '5000' })
  expect(settingsOf('basic', { hasStatements: false })).not.toHaveProperty(['pg_stat_statements.max'])
  expect(splitSettings(settingsOf('basic')).fixed).toMatchObject(small)
})

test('limits the settings on a small host', () => {
  expect(settingsOf('Performance', { hostMemoryMb: 2048 })).toMatchObject({
    shared_buffers: '192MB',
    effective_cache_size: '768MB',
    max_connections: '366',
  })
  expect(settingsOf('basic', { hostMemoryMb: 64 }).shared_buffers).toBe('32MB')
})

test('limits the WAL that an inactive slot retains', () => {
  expect(settingsOf('basic', { diskSizeGb: 4 }).max_slot_wal_keep_size).toBe('1024MB')
  expect(settingsOf('basic', { diskSizeGb: 500 }).max_slot_wal_keep_size).toBe('4096MB')
  expect(settingsOf('Performance', { diskSizeGb: 10 }).max_wal_size).toBe('1280MB')
})

test('limits the temporary files of a session', () => {
  expect(settingsOf('basic', { diskSizeGb: 1 }).temp_file_limit).toBe('1024MB')
  expect(settingsOf('basic', { diskSizeGb: 100 }).temp_file_limit).toBe('25600MB')
  expect(splitSettings(settingsOf('basic')).reloadable).toHaveProperty('temp_file_limit')
})

test('never has a minimum above the maximum', () => {
  for (const plan of plans) {
    for (const diskSizeGb of [1, 10, 500]) {
      const { min_wal_size, max_wal_size } = clusterSettings({ ...input, plan, diskSizeGb })
      expect(Number.parseInt(max_wal_size!, 10)).toBeGreaterThan(Number.parseInt(min_wal_size!, 10))
    }
  }
})

test('enables only what the installation supports', () => {
  expect(settingsOf('basic')).toMatchObject({ shared_preload_libraries: 'pg_stat_statements', jit: 'off' })
  expect(settingsOf('basic', { hasStatements: false, hasJit: true })).toMatchObject({
    shared_preload_libraries: '',
    jit: 'on',
  })
})

test('lets the caller override settings', () => {
  expect(settingsOf('basic', { overrides: { jit: 'on', hot_standby: 'off' } })).toMatchObject({
    jit: 'on',
    hot_standby: 'off',
  })
})

test('separates settings that require a restart', () => {
  const { fixed, reloadable } = splitSettings({ port: '1', work_mem: '4MB', ssl: 'on' })
  expect(fixed).toEqual({ port: '1' })
  expect(reloadable).toEqual({ work_mem: '4MB', ssl: 'on' })
})

test('quotes literals', () => {
  expect(renderSettings({ cluster_name: `it's \\ odd` })).toBe(`cluster_name = 'it''s \\\\ odd'\n`)
})

test('rejects platform roles before it accepts users from the network', () => {
  const lines = renderAccess().trimEnd().split('\n')
  expect(lines.findIndex((line) => line.endsWith('reject'))).toBeLessThan(
    lines.findIndex((line) => line.startsWith('host') && line.endsWith('scram-sha-256')),
  )
  expect(lines.filter((line) => line.includes('replication'))).toEqual([
    'local all,replication postgres peer map=platform',
  ])
})

test.each([false, true])('trusts nobody without authentication, if closed is %s', (closed) => {
  expect(renderAccess({ closed })).not.toMatch(/trust|password|md5/)
})

test('admits only known Unix users as the superuser', () => {
  expect(renderIdentities(['root', 'a "b"'])).toBe(
    'platform "root" postgres\nany_role "root" all\nplatform "a ""b""" postgres\nany_role "a ""b""" all\n',
  )
})

test('accepts no connections from the network to a closed cluster', () => {
  expect(renderAccess({ closed: true }).trimEnd().split('\n')).toEqual([
    'local all,replication postgres peer map=platform',
    'local all all peer map=any_role',
  ])
})
