import fc from 'fast-check'
import { expect, test } from 'vitest'
import { describedBackup } from '../../../test/support/backup-description.ts'
import { parseBackup, parseCluster } from './description.ts'

const clusterId = 'abcdefghij123456'
const backup = describedBackup({ clusterId, label: '20261115-100203F', manifestChecksum: 'ab' })
const time = '2026-11-15T10:02:03.000001Z'
const base = {
  backup: { clusterId, label: '20261115-100203F', startLsn: '0/3000028', stopLsn: '0/3000120' },
  pieces: [{ clusterId, epoch: 1, timeline: 1, end: '0/3000150' }],
  at: time,
  lsn: '0/3000150',
}
const cluster = {
  drillQuery: null,
  retentionDays: 14,
  maintenanceWindow: 'sun 03:00',
  pinned: ['20261115-100203F'],
  clusterId,
  clusterName: 'shop',
  orgSlug: 'acme',
  pgMajor: '17',
  createdAt: time,
  settings: { plan: 'basic' },
  epochs: [{ epoch: 1, timeline: 2, startLsn: '0/3000100', startedAt: time, base }],
}

test('descriptions are read as they were written', () => {
  expect(parseBackup(JSON.stringify(backup))).toEqual(backup)
  expect(parseCluster(JSON.stringify(cluster))).toEqual(cluster)
  expect(parseCluster(JSON.stringify({ drillQuery: 'select 1', pinned: [] }))).toEqual({
    drillQuery: 'select 1',
    retentionDays: null,
    maintenanceWindow: null,
    pinned: [],
  })
})

test.each(Object.keys(backup))('a backup with a wrong %s is refused', (name) => {
  for (const value of [[], 1.5, -1, null, '', 2 ** 60])
    if (typeof value !== typeof backup[name as keyof typeof backup] || typeof value === 'number')
      expect(() => parseBackup(JSON.stringify({ ...backup, [name]: value }))).toThrow(name)
})

test.each(Object.keys(cluster))('a cluster with a wrong %s is refused', (name) => {
  const wrong = name === 'retentionDays' ? 'long' : 7
  expect(() => parseCluster(JSON.stringify({ ...cluster, [name]: wrong }))).toThrow(name)
})

test('wrong bases are refused', () => {
  const withBase = (change: object) =>
    parseCluster(JSON.stringify({ ...cluster, epochs: [{ ...cluster.epochs[0], base: { ...base, ...change } }] }))
  expect(() => withBase({ backup: null })).toThrow('base')
  expect(() => withBase({ pieces: [7] })).toThrow('pieces')
  expect(() => withBase({ pieces: [{ ...base.pieces[0], end: 'x' }] })).toThrow('not an LSN')
  expect(() => withBase({ at: '2026-02-30T00:00:00Z' })).toThrow('at')
})

test('truncated and arbitrary text is refused with an error', () => {
  const text = JSON.stringify(cluster)
  fc.assert(
    fc.property(fc.nat(text.length - 1), (end) => void expect(() => parseCluster(text.slice(0, end))).toThrow()),
  )
  fc.assert(fc.property(fc.json(), (json) => void expect(() => parseBackup(json)).toThrow()))
  expect(() => parseBackup(JSON.stringify({ ...backup, settings: { text: 'x'.repeat(17 * 1024 ** 2) } }))).toThrow(
    'too large',
  )
})
