import { expect, test } from 'vitest'
import { parseQuotas, quotaExceeded, quotaNames, quotaTable, readQuotaChanges, standardQuotas } from './quota.ts'

test('a list of quotas replaces only what it names', () => {
  expect(parseQuotas(' clusters=5, disk_gb = unlimited,sandboxes=0,')).toEqual({
    ...standardQuotas(),
    clusters: 5,
    disk_gb: null,
    sandboxes: 0,
  })
  expect(parseQuotas('')).toEqual(standardQuotas())
})

test.each([
  'clusters',
  'clusters=',
  'clusters=-1',
  'clusters=1.5',
  'cluster=1',
  'clusters=1e3',
  '__proto__=1',
  'toString=1',
])('the setting %s is rejected', (text) => expect(() => parseQuotas(text)).toThrow('is not one of apps, machines,'))

test('a change is a number, unlimited or default', () => {
  expect(readQuotaChanges({ clusters: 0, machines: 'unlimited', apps: 'default' })).toEqual([
    { name: 'clusters', limit: 0 },
    { name: 'machines', limit: null },
    { name: 'apps', limit: 'default' },
  ])
})

test.each([-1, 1.5, 1_000_000_001, '5', '', 'none'])('the limit %j is rejected', (clusters) => {
  expect(() => readQuotaChanges({ clusters })).toThrow('clusters must be a whole number from 0 to 1000000000')
})

test('a refusal names quota, usage and limit, and says who can raise it', () => {
  const excess = { organization: 'acme', quota: 'disk_gb', limit: 10, used: 8, asked: 3 }
  const error = quotaExceeded(excess)
  expect(error.statusCode).toBe(422)
  expect(error.message).toBe(
    'quota disk_gb exceeded: organization acme uses 8 of 10 and 3 more were asked for; delete what is not needed, or ask the operator of the platform to raise the quota',
  )
})

test('every quota has a description and a limit', () => {
  for (const name of quotaNames) {
    expect(quotaTable[name].about).not.toBe('')
    expect(quotaTable[name].standard).toBeGreaterThan(0)
  }
})
