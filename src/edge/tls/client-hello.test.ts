import { once } from 'node:events'
import { duplexPair } from 'node:stream'
import { connect } from 'node:tls'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { readServerName } from './client-hello.ts'

async function helloFor(servername: string): Promise<Buffer> {
  const [client, wire] = duplexPair()
  const socket = connect({ socket: client, servername })
  const [hello] = await once(wire, 'data')
  socket.destroy()
  return hello
}

test('the server name is read once the first record is complete', async () => {
  const hello = await helloFor('shop.example.com')
  expect(readServerName(hello)).toBe('shop.example.com')
  for (let length = 0; length < hello.length; length++)
    expect(readServerName(hello.subarray(0, length))).toBeUndefined()
  expect(readServerName(await helloFor(''))).toBe('')
  expect(readServerName(Buffer.from('GET / HTTP/1.1'))).toBe('')
})

test('a corrupted ClientHello never throws', async () => {
  const hello = await helloFor('shop.example.com')
  const corruptions = fc.array(fc.tuple(fc.nat(hello.length - 1), fc.nat(255)), { maxLength: 8 })
  fc.assert(
    fc.property(corruptions, (changes) => {
      const changed = Buffer.from(hello)
      for (const [at, value] of changes) changed[at] = value
      expect(readServerName(changed) ?? '').toBeTypeOf('string')
    }),
  )
})
