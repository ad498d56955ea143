import { expect, test } from 'vitest'
import { isBelow, parsePathPrefix } from './path-prefix.ts'

test.each([
  ['/', '', '/'],
  ['/api', '', '/api/'],
  ['/api/', '', '/api/'],
  ['/api/*', '', '/api/'],
  ['/api*', '', '/api/'],
  ['Example.com/api', 'example.com', '/api/'],
])('%j is a host and a path', (text, host, path) => {
  expect(parsePathPrefix(text)).toEqual({ host, path })
})

test.each(['', 'api', 'example.com', '/a b', '/a?b', '/a#b', 'https://example.com/', 'example.com:80/', '/\n'])(
  '%j is none',
  (text) => {
    expect(parsePathPrefix(text)).toBeUndefined()
  },
)

test('a path is below itself, but siblings are not', () => {
  const below = (target: string) => isBelow('/api/', target)
  expect(['/api', '/api/', '/api/x', '/api?x=/', '/api/x?y'].every(below)).toBe(true)
  expect(['/', '/apis', '/ap', '/x/api/', '/?/api/'].some(below)).toBe(false)
})
