import { expect, test } from 'vitest'
import type { ReplayCacheRule } from '../../../model/app/machine-config.ts'
import { parseSessionRules } from '../../routing/session-rule.ts'
import { readRequestHead } from '../message.ts'
import { findSession } from './replay-session.ts'

const rule: ReplayCacheRule = { path_prefix: '/', ttl_seconds: 60, type: 'cookie', name: 'sid' }
const rules = parseSessionRules([
  rule,
  { ...rule, path_prefix: '/api/*', type: 'header', name: 'Authorization', allow_bypass: true },
  { ...rule, path_prefix: 'Web.test/', name: 'web' },
])!
const find = (lines: string[], path = '/', host = 'app.test', app = 'app') =>
  findSession(rules, app, readRequestHead([`GET ${path} HTTP/1.1`, `Host: ${host}`, ...lines].join('\r\n')))

test('rules are sorted by precedence', () => {
  expect(rules.map(({ host, path, name, allowsBypass }) => [host, path, name, allowsBypass])).toEqual([
    ['', '/api/', 'authorization', true],
    ['web.test', '/', 'web', false],
    ['', '/', 'sid', false],
  ])
  expect(parseSessionRules([])).toBeUndefined()
})

test('requests with the same value at the same host share a session', () => {
  const { key } = find(['Cookie: sid=1'])!
  for (const lines of [['Cookie: a=b;sid=1 ; c'], ['Cookie: a=b', 'Cookie: sid=1'], ['Cookie: sid=1; sid=2']]) {
    expect(find(lines, '/x?y')?.key).toBe(key)
  }
  const others = [
    find(['Cookie: sid=2']),
    find(['Cookie: sid=1'], '/', 'other.test'),
    find(['Cookie: sid=1'], '/', 'app.test', 'another'),
    find(['Authorization: 1'], '/api'),
    find(['Cookie: web=1'], '/', 'web.test'),
  ]
  expect(new Set([key, ...others.map((other) => other!.key)]).size).toBe(6)
})

test.each([
  [[]],
  [['Cookie: Sid=1']],
  [['Cookie: sid=']],
  [['Cookie: asid=1; =sid=1; sid']],
  [['Cookie: sid=1'], '/api/x'],
  [['Cookie: sid=1'], '/', 'web.test'],
] as [string[], string?, string?][])('%j belongs to no session', (lines, path, host) => {
  expect(find(lines, path, host)).toBeUndefined()
})
