import { createServer } from 'node:net'
import { expect, test } from 'vitest'
import { freePort } from '../../../test/support/port.ts'
import { canBind, isListening, reachableHost } from './port.ts'

test('distinguishes a free port from a taken one', async () => {
  const server = createServer()
  const port = await freePort()
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve))
  expect(await canBind('127.0.0.1', port)).toBe(false)
  expect(await canBind('0.0.0.0', port)).toBe(false)
  expect(await canBind('127.0.0.2, 127.0.0.1', port)).toBe(false)
  expect(await isListening('0.0.0.0', port)).toBe(true)
  await new Promise((resolve) => server.close(resolve))
  expect(await canBind('127.0.0.1', port)).toBe(true)
  expect(await canBind('*', port)).toBe(true)
  expect(await isListening('127.0.0.1', port)).toBe(false)
})

test('cannot bind an address of another host', async () => {
  expect(await canBind('192.0.2.1', 0)).toBe(false)
})

test.each([
  ['*', '127.0.0.1'],
  ['0.0.0.0', '127.0.0.1'],
  ['::', '::1'],
  ['192.0.2.1, 127.0.0.1', '192.0.2.1'],
])('reaches a server that listens on %s at %s', (hosts, address) => {
  expect(reachableHost(hosts)).toBe(address)
})
