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
  [`printf "a\\nb" "\\$HOME" "\\\\"`, ['printf', 'a\\nb', '$HOME', '\\']],
  [`echo 'a\\nb' \\n`, ['echo', 'a\\nb', 'n']],
  ['a \\\n b "c\\\nd"', ['a', 'b', 'cd']],
  ['a\\', ['a\\']],
  [`a 'b c' "d e"f`, ['a', 'b c', 'd ef']],
  [`a\\ b "c\\"d" '\\x'`, ['a b', 'c"d', '\\x']],
])('splits %j into %j', (text, words) => {
  expect(splitWords(text)).toEqual(words)
})

test.each([`'a`, '"a', `a "b'`, 'a "b\\"'])('rejects %j, in which a quote is not closed', (line) => {
  expect(splitWords(line)).toBeUndefined()
})

test('returns quoted words unchanged', () => {
  fc.assert(
    fc.property(fc.array(fc.string({ unit: 'binary' })), (words) => {
      const quoted = words.map((word) => `'${word.replaceAll("'", `'"'"'`)}'`)
      expect(splitWords(quoted.join(' '))).toEqual(words)
    }),
  )
})
