import { expect, it } from 'vitest'
import { kindOfAddress } from './http.ts'

it.each([
  ['127.0.0.1', 'inner'],
  ['10.1.2.3', 'inner'],
  ['172.31.0.1', 'inner'],
  ['192.168.0.1', 'inner'],
  ['100.64.0.1', 'inner'],
  ['::1', 'inner'],
  ['fd00::1', 'inner'],
  ['::ffff:10.0.0.1', 'inner'],
  ['169.254.169.254', 'never'],
  ['::ffff:169.254.169.254', 'never'],
  ['::ffff:a9fe:a9fe', 'never'],
  ['fe80::1', 'never'],
  ['0.0.0.0', 'never'],
  ['::', 'never'],
  ['224.0.0.1', 'never'],
  ['255.255.255.255', 'never'],
  ['172.32.0.1', 'outer'],
  ['8.8.8.8', 'outer'],
  ['2600::1', 'outer'],
])('knows %s as %s', (address, kind) => {
  expect(kindOfAddress(address)).toBe(kind)
})
