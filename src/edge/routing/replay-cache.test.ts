import { expect, test } from 'vitest'
import { ReplayCache, readCacheOrder } from './replay-cache.ts'

const read = (text: string, seconds = '60', bypass?: string) => readCacheOrder(text, seconds, bypass, 'web.test')

test('an order names a path, a time and perhaps its own host', () => {
  expect(read('/some/*')).toMatchObject({ prefix: '/some/', seconds: 60, allowsBypass: false, invalidates: false })
  expect(read('WEB.test/some/*', '10', 'yes')).toMatchObject({ prefix: '/some/', seconds: 10, allowsBypass: true })
  expect(read(' Invalidate ')).toMatchObject({ invalidates: true, prefix: undefined })
  expect(readCacheOrder(undefined, '60', undefined, 'web.test')).toBeUndefined()
})

test('a session is forgotten when its time is over, or when too many others came later', () => {
  const cache = new ReplayCache()
  const entry = { appId: 'app', wish: {}, allowsBypass: false, until: 1_000 }
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
])('%j for %j keeps nothing', (text, seconds) => {
  expect(read(text, seconds)?.prefix).toBeUndefined()
})

test('the longest path that fits counts, until its time is over', () => {
  const cache = new ReplayCache()
  const entry = (prefix: string, until = 1_000) => ({
    prefix,
    host: 'web.test',
    appId: prefix,
    wish: {},
    allowsBypass: false,
    until,
  })
  for (const prefix of ['/', '/a/', '/a/b/']) cache.put('app', entry(prefix), 0)
  cache.put('app', entry('/gone/', 5), 0)
  const found = (path: string, host = 'web.test', app = 'app') => cache.find(app, host, path, 10)?.prefix
  expect([found('/a/b/c?d=/x'), found('/a/b'), found('/ab'), found('/gone/x')]).toEqual(['/a/b/', '/a/b/', '/', '/'])
  expect([found('/a/', 'other.test'), found('/a/', 'web.test', 'other')]).toEqual([undefined, undefined])
  cache.remove('app', cache.find('app', 'web.test', '/a/b/c', 10)!)
  expect(found('/a/b/c')).toBe('/a/')
})
