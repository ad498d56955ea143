import { expect, test } from 'vitest'
import { formatBytes } from './bytes.ts'

test.each([
  [0, '0 bytes'],
  [1023, '1023 bytes'],
  [1024, '1 kB'],
  [40_000_000, '38.1 MB'],
  [1024 ** 2 - 1, '1 MB'],
  [10 * 1024 ** 3, '10 GB'],
  [5000 * 1024 ** 4, '5000 TB'],
])('writes %d as %s', (bytes, text) => {
  expect(formatBytes(bytes)).toBe(text)
})
