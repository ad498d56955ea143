import { expect, test } from 'vitest'
import { parseSize } from './storage-command.ts'

test.each([
  ['500M', 500 * 1024 ** 2],
  ['50G', 50 * 1024 ** 3],
  ['50GiB', 50 * 1024 ** 3],
  ['2t', 2 * 1024 ** 4],
])('%s is a size', (text, bytes) => {
  expect(parseSize(text)).toBe(bytes)
})

test.each(['', '50', '-1G', '1.5G', '0x5G', '50 G', 'G'])('%j is not a size', (text) => {
  expect(() => parseSize(text)).toThrow('number with a unit')
})
