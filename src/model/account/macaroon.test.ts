import { createHmac } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { mintMacaroon, readMacaroon } from './macaroon.ts'
import { type Packed, pack, unpack } from './msgpack.ts'

const key = Buffer.alloc(32, 7)
const random = Buffer.alloc(16, 9)
const tokenId = 'abcdefghij012345'

const bytesOf = (token: string) => Buffer.from(token.slice('fm2_'.length), 'base64')
const hmac = (secret: Buffer, text: Buffer) => createHmac('sha256', secret).update(text).digest()

describe('a macaroon', () => {
  test('consists of a nonce, a location, caveats and a signature, byte for byte', () => {
    const token = mintMacaroon({ tokenId }, key, random)
    const nonce = Buffer.concat([
      Buffer.of(0x93, 0xc4, 22),
      Buffer.from(`berth/${tokenId}`),
      Buffer.of(0xc4, 16),
      random,
      Buffer.of(0xc2),
    ])
    const place = Buffer.from('https://api.fly.io/v1')
    expect(bytesOf(token)).toEqual(
      Buffer.concat([
        Buffer.of(0x94),
        nonce,
        Buffer.of(0xa0 | place.length),
        place,
        Buffer.of(0x90, 0xc4, 32),
        hmac(key, nonce),
      ]),
    )
  })

  test('has a signature that chains over its caveats', () => {
    const validity = { from: 1_700_000_000, until: 1_700_003_600 }
    const token = mintMacaroon({ tokenId, organization: { numericId: 300, readOnly: false }, validity }, key, random)
    const [nonce, , caveats, tail] = unpack(bytesOf(token)) as [Packed, Packed, Packed, Buffer]
    expect(caveats).toEqual([0, [300, 31], 4, [1_700_000_000, 1_700_003_600]])
    const organization = Buffer.of(0x92, 0x00, 0x92, 0xcd, 0x01, 0x2c, 31)
    const window = Buffer.of(0x92, 0x04, 0x92, 0xce, 0x65, 0x53, 0xf1, 0x00, 0xce, 0x65, 0x53, 0xff, 0x10)
    expect(tail).toEqual(hmac(hmac(hmac(key, pack(nonce)), organization), window))
  })

  test('contains the token and the organization', () => {
    const organization = { numericId: 5_000_000_000, readOnly: true }
    const token = mintMacaroon({ tokenId, organization, validity: { from: 1, until: 2 } })
    expect(readMacaroon(token)).toEqual({ tokenId, organization: 5_000_000_000, until: 2 })
    expect(readMacaroon(mintMacaroon({ tokenId }))).toEqual({ tokenId, organization: undefined, until: undefined })
  })

  test('is different each time', () => {
    expect(mintMacaroon({ tokenId })).not.toBe(mintMacaroon({ tokenId }))
  })

  test('is not recognized with another location or key id', () => {
    const nonce = [Buffer.from(`berth/${tokenId}`), random, false]
    const coded = (value: Packed) => `fm2_${pack(value).toString('base64')}`
    expect(readMacaroon(coded([nonce, 'https://api.fly.io/v1', [], Buffer.alloc(32)]))).toMatchObject({ tokenId })
    for (const other of [
      coded([nonce, 'https://auth.example/v1', [], Buffer.alloc(32)]),
      coded([[Buffer.from('someone'), random, false], 'https://api.fly.io/v1', [], Buffer.alloc(32)]),
      coded([nonce, 'https://api.fly.io/v1', null, Buffer.alloc(32)]),
      coded([null, 'https://api.fly.io/v1', [], Buffer.alloc(32)]),
      coded([nonce, 'https://api.fly.io/v1', []]),
      coded([]),
      coded(null),
      'fm2_',
      'fm2_????',
      'berth_abc',
    ]) {
      expect(readMacaroon(other), other).toBeUndefined()
    }
  })
})

describe('MessagePack', () => {
  const leaf = fc.oneof(
    fc.maxSafeNat(),
    fc.string({ unit: 'binary', maxLength: 300 }),
    fc.boolean(),
    fc.constant(null),
    fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes)),
  )
  const { value } = fc.letrec<{ value: Packed }>((tie) => ({
    value: fc.oneof({ maxDepth: 3, withCrossShrink: true }, leaf, fc.array(tie('value'), { maxLength: 20 })),
  }))

  test('unpacks to the packed value', () => {
    fc.assert(
      fc.property(value, (given) => {
        expect(unpack(pack(given))).toEqual(given)
      }),
    )
  })

  test.each([0, 127, 128, 255, 256, 65_535, 65_536, 4_294_967_295, 4_294_967_296, Number.MAX_SAFE_INTEGER])(
    'holds the number %d',
    (number) => expect(unpack(pack(number))).toBe(number),
  )

  test.each([31, 32, 255, 256, 65_535, 65_536])('encodes %d bytes and characters', (length) => {
    const text = 'x'.repeat(length)
    expect(unpack(pack(text))).toBe(text)
    expect(unpack(pack(Buffer.from(text)))).toEqual(Buffer.from(text))
  })

  test('is rejected when it is truncated or has trailing bytes', () => {
    fc.assert(
      fc.property(value, (given) => {
        const bytes = pack(given)
        expect(unpack(bytes.subarray(0, -1))).toBeUndefined()
        expect(unpack(Buffer.concat([bytes, Buffer.of(0)]))).toBeUndefined()
      }),
    )
  })

  test('never throws on arbitrary input', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        unpack(Buffer.from(bytes))
        readMacaroon(`fm2_${Buffer.from(bytes).toString('base64')}`)
      }),
      { numRuns: 2000 },
    )
    fc.assert(fc.property(fc.string({ unit: 'binary' }), (text) => void readMacaroon(`fm2_${text}`)))
    expect(unpack(Buffer.alloc(10_000, 0x91))).toBeUndefined()
    expect(unpack(Buffer.of(0xdd, 0xff, 0xff, 0xff, 0xff))).toBeUndefined()
    expect(unpack(Buffer.of(0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))).toBeUndefined()
  })
})
