import fc from 'fast-check'
import { expect, test } from 'vitest'
import { isDeeperThan } from './json-depth.ts'

function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0
  return 1 + Math.max(0, ...Object.values(value).map(depthOf))
}

test('agrees with the nesting of the parsed value', () => {
  fc.assert(
    fc.property(fc.json({ maxDepth: 8 }), (text) => {
      const depth = depthOf(JSON.parse(text))
      expect([isDeeperThan(text, depth), isDeeperThan(text, depth - 1)]).toEqual([false, depth > 0])
    }),
  )
})

test.each([
  ['brackets in strings', `{"a":"${'['.repeat(100)}"}`, false],
  ['an escaped quote before brackets', `{"a":"\\"${'['.repeat(100)}"}`, false],
  ['an escaped backslash before the quote', `{"a\\\\":${'['.repeat(100)}}`, true],
  ['brackets that are closed', `[${'[],'.repeat(1000)}[]]`, false],
  ['text that is not JSON', '['.repeat(1_000_000), true],
  ['a string that does not end', `"${'['.repeat(100)}`, false],
])('counts %s correctly', (_what, text, isDeep) => {
  expect(isDeeperThan(text, 64)).toBe(isDeep)
})
