import { expect, test } from 'vitest'
import { chooseEncoding } from './static-page.ts'

test.each([
  [undefined, 'identity'],
  ['', 'identity'],
  ['gzip', 'gzip'],
  ['gzip, deflate, br, zstd', 'br'],
  ['br;q=0, gzip;q=0.5', 'gzip'],
  ['BR', 'br'],
  ['gzip; q=0', 'identity'],
  ['gzip;q=abc', 'identity'],
  ['*', 'identity'],
])('Accept-Encoding: %s is answered with %s', (header, encoding) => {
  expect(chooseEncoding(header)).toBe(encoding)
})
