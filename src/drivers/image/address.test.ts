import { expect, test } from 'vitest'
import { classifyAddress } from './address.ts'

test.each([
  ['127.0.0.1', 'private'],
  ['10.1.2.3', 'private'],
  ['172.31.0.1', 'private'],
  ['192.168.0.1', 'private'],
  ['100.64.0.1', 'private'],
  ['::1', 'private'],
  ['fd00::1', 'private'],
  ['::ffff:10.0.0.1', 'private'],
  ['169.254.169.254', 'forbidden'],
  ['::ffff:169.254.169.254', 'forbidden'],
  ['::ffff:a9fe:a9fe', 'forbidden'],
  ['fe80::1', 'forbidden'],
  ['0.0.0.0', 'forbidden'],
  ['::', 'forbidden'],
  ['224.0.0.1', 'forbidden'],
  ['255.255.255.255', 'forbidden'],
  ['172.32.0.1', 'public'],
  ['8.8.8.8', 'public'],
  ['2600::1', 'public'],
])('classifies %s as %s', (address, kind) => {
  expect(classifyAddress(address)).toBe(kind)
})
