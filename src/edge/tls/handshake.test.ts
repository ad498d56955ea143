import { once } from 'node:events'
import { duplexPair } from 'node:stream'
import { connect } from 'node:tls'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { readServerName, tlsRulesOf, webRules } from './handshake.ts'

/** What a client says first. */
async function helloOf(servername: string): Promise<Buffer> {
  const [client, wire] = duplexPair()
  const socket = connect({ socket: client, servername })
  const [hello] = await once(wire, 'data')
  socket.destroy()
  return hello
}

test('the name is read once all of the first record is there', async () => {
  const hello = await helloOf('shop.example.com')
  expect(readServerName(hello)).toBe('shop.example.com')
  for (let length = 0; length < hello.length; length++)
    expect(readServerName(hello.subarray(0, length))).toBeUndefined()
  expect(readServerName(await helloOf(''))).toBe('')
  expect(readServerName(Buffer.from('GET / HTTP/1.1'))).toBe('')
})

test('whatever a client says is read', async () => {
  const hello = await helloOf('shop.example.com')
  const places = fc.array(fc.tuple(fc.nat(hello.length - 1), fc.nat(255)), { maxLength: 8 })
  fc.assert(
    fc.property(places, (changes) => {
      const changed = Buffer.from(hello)
      for (const [at, value] of changes) changed[at] = value
      expect(readServerName(changed) ?? '').toBeTypeOf('string')
    }),
  )
})

test('what cannot be spoken is left out of the rules of a port', () => {
  expect(tlsRulesOf({}, true)).toEqual(webRules)
  expect(tlsRulesOf({ alpn: ['', 'x'.repeat(256)], versions: ['TLSv1.1'] }, true)).toEqual(webRules)
  expect(tlsRulesOf(undefined, false)).toEqual({ ...webRules, alpn: [] })
  expect(tlsRulesOf({ alpn: ['mine'], versions: ['TLSv1.3'] }, true)).toEqual({
    alpn: ['mine'],
    minVersion: 'TLSv1.3',
    maxVersion: 'TLSv1.3',
  })
})
