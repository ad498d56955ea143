import { expect, test } from 'vitest'
import { crc32c } from './crc32c.ts'

test('computes the checksum that PostgreSQL uses', () => {
  expect(crc32c(Buffer.from('123456789'))).toBe(0xe3069283)
  expect(crc32c(Buffer.alloc(32))).toBe(0x8a9136aa)
})

test('continues from the checksum of earlier bytes', () => {
  expect(crc32c(Buffer.from('56789'), crc32c(Buffer.from('1234')))).toBe(0xe3069283)
})
