import fc from 'fast-check'
import { expect, test } from 'vitest'
import { splitWords } from './words.ts'

test.each([
  ['', []],
  ['  ', []],
  ['ls -la', ['ls', '-la']],
  [`sh -c 'echo "a b"'`, ['sh', '-c', 'echo "a b"']],
  ['echo "a \\" b" c', ['echo', 'a " b', 'c']],
  [`a''b "" c\\ d`, ['ab', '', 'c d']],
  ['"a\\nb"', ['anb']],
])('%j splits into %j', (text, words) => {
  expect(splitWords('cmd', text)).toEqual(words)
})

test.each([
  ['"a\\nb"', ['a\\nb']],
  ['"a\\"\\\\\\$\\`"', ['a"\\$`']],
  ["a\\ b '\\x'", ['a b', '\\x']],
])('with POSIX escapes, %j splits into %j', (text, words) => {
  expect(splitWords('cmd', text, 'posix')).toEqual(words)
})

test('an unclosed quote is rejected', () => {
  for (const text of [`'a`, '"a', `a "b'`]) expect(() => splitWords('cmd', text)).toThrow('cmd has an unclosed')
})

test('quoted words split into the original words', () => {
  fc.assert(
    fc.property(fc.array(fc.string()), (words) => {
      const quoted = words.map((word) => `'${word.replaceAll("'", `'"'"'`)}'`)
      expect(splitWords('cmd', quoted.join(' '))).toEqual(words)
      expect(splitWords('cmd', quoted.join(' '), 'posix')).toEqual(words)
    }),
  )
})
