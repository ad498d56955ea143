import { expect, test } from 'vitest'
import { filePattern } from './file-pattern.ts'

test.each([
  ['*.txt', ['a.txt', 'deep/down/b.txt', '.txt'], ['a.txt.gz', 'txt', 'a.TXT']],
  ['a?c', ['abc', 'x/a-c'], ['ac', 'abbc']],
  ['[a-c]x', ['ax', 'bx'], ['dx', 'abx']],
  ['[!a-c]x', ['dx'], ['ax', 'x']],
  ['[]x', ['[]x'], ['x']],
  ['a[', ['a['], ['a']],
  ['\\*', ['*'], ['a']],
  ['*a*b*', ['ab', 'xaxbx', 'aab'], ['ba', 'a']],
  ['', [''], ['a']],
  ['日?', ['日本'], ['本日']],
  ['?', ['a', '😀'], ['ab']],
  ['src/*.ts', ['src/a.ts'], ['a.ts', 'src/deep/a.ts', 'x/src/a.ts']],
  ['/src/*', ['src/a'], ['a']],
  ['**', ['a', 'a/b/c'], []],
  ['**/*.ts', ['a.ts', 'x/y/a.ts'], ['a.js']],
  ['src/**/a', ['src/a', 'src/x/a', 'src/x/y/a'], ['a', 'srcx/a']],
  ['**/node_modules/**', ['node_modules', 'a/node_modules/b'], ['a/node/b']],
])('%s', (pattern, fitting, others) => {
  const fits = filePattern(pattern)
  expect(fitting.filter((path) => !fits(path))).toEqual([])
  expect(others.filter((path) => fits(path))).toEqual([])
})

test('matching takes bounded time for any pattern', () => {
  const fits = filePattern(`${'*a'.repeat(100)}*b`)
  // One that goes back to every star would not end before the test does.
  expect(fits('a'.repeat(255))).toBe(false)
})
