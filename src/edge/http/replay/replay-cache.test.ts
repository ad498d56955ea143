import { expect, test } from 'vitest'
import { parseCacheDirective, ReplayCache } from './replay-cache.ts'

const parse = (text: string, seconds = '60', bypass?: string) => parseCacheDirective(text, seconds, bypass, 'web.test')

test('a directive has a path, a time to live and optionally its own host', () => {
  expect(parse('/some/*')).toMatchObject({ prefix: '/some/', seconds: 60, allowsBypass: false, invalidates: false })
  expect(parse('WEB.test/some/*', '10', 'yes')).toMatchObject({ prefix: '/some/', seconds: 10, allowsBypass: true })
  expect(parse(' Invalidate ')).toMatchObject({ invalidates: true, prefix: undefined })
  expect(parseCacheDirective(undefined, '60', undefined, 'web.test')).toBeUndefined()
})

test('a session is removed when it expires, or when the cache is full and it is the oldest', () => {
  const cache = new ReplayCache()
  const entry = { appId: 'app', selector: {}, allowsBypass: false, expiresAt: 1_000 }
  cache.putSession('one', entry)
  expect([cache.findSession('one', 999), cache.findSession('one', 1_000)]).toEqual([entry, undefined])
  for (let n = 0; n < 15_000; n++) cache.putSession(`other ${n}`, entry)
  cache.putSession('one', entry)
  for (let n = 15_000; n < 30_000; n++) cache.putSession(`other ${n}`, entry)
  const found = ['other 0', 'one', 'other 29999'].map((key) => cache.findSession(key, 0) !== undefined)
  expect(found).toEqual([false, true, true])
  cache.removeSession('one')
  expect(cache.findSession('one', 0)).toBeUndefined()
})

test.each([
  ['other.test/some/*', '60'],
  ['/some/*', '9'],
  ['/some/*', 'soon'],
  ['some', '60'],
  ['/a b', '60'],
])('%j for %j is not cached', (text, seconds) => {
  expect(parse(text, seconds)?.prefix).toBeUndefined()
})

test('the longest matching path is found until it expires', () => {
  const cache = new ReplayCache()
  const entry = (prefix: string, expiresAt = 1_000) => ({
    prefix,
    host: 'web.test',
    appId: prefix,
    selector: {},
    allowsBypass: false,
    expiresAt,
  })
  for (const prefix of ['/', '/a/', '/a/b/']) cache.put('app', entry(prefix), 0)
  cache.put('app', entry('/gone/', 5), 0)
  const found = (path: string, host = 'web.test', app = 'app') => cache.find(app, host, path, 10)?.prefix
  expect([found('/a/b/c?d=/x'), found('/a/b'), found('/ab'), found('/gone/x')]).toEqual(['/a/b/', '/a/b/', '/', '/'])
  expect([found('/a/', 'other.test'), found('/a/', 'web.test', 'other')]).toEqual([undefined, undefined])
  cache.remove('app', cache.find('app', 'web.test', '/a/b/c', 10)!)
  expect(found('/a/b/c')).toBe('/a/')
})
