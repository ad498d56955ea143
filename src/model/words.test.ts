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
])('%j has the words %j', (text, words) => {
  expect(splitWords('cmd', text)).toEqual(words)
})

test('a quote must end', () => {
  for (const text of [`'a`, '"a', `a "b'`]) expect(() => splitWords('cmd', text)).toThrow('quote')
})

test('words in quotes come back as they were', () => {
  fc.assert(
    fc.property(fc.array(fc.string()), (words) => {
      const quoted = words.map((word) => `'${word.replaceAll("'", `'"'"'`)}'`)
      expect(splitWords('cmd', quoted.join(' '))).toEqual(words)
    }),
  )
})
