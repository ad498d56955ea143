import { createHmac } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { attenuate, caveat, masks } from '../../../test/support/macaroon.ts'
import { mintMacaroon, readMacaroon, verifyAttenuation } from './macaroon.ts'
import { type Packed, pack, unpack } from './msgpack.ts'

const key = Buffer.alloc(32, 7)
/** The platform's secret is not used as a signing key itself. */
const signingKey = createHmac('sha256', key).update('macaroon').digest()
const random = Buffer.alloc(16, 9)
const tokenId = 'abcdefghij012345'

const bytesOf = (token: string) => Buffer.from(token.slice('fm2_'.length), 'base64')
const hmac = (secret: Buffer, text: Buffer) => createHmac('sha256', secret).update(text).digest()

describe('a macaroon', () => {
  test('consists of a nonce, a location, caveats and a signature, byte for byte', () => {
    const token = mintMacaroon({ tokenId }, key, random)
    const nonce = Buffer.concat([
      Buffer.of(0x93, 0xc4, 24),
      Buffer.from(`berth/${tokenId}/0`),
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
        hmac(signingKey, nonce),
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
    expect(tail).toEqual(hmac(hmac(hmac(signingKey, pack(nonce)), organization), window))
  })

  test('contains the token and the organization', () => {
    const organization = { numericId: 5_000_000_000, readOnly: true }
    const token = mintMacaroon({ tokenId, organization, validity: { from: 1, until: 2 } }, key)
    expect(readMacaroon(token)).toEqual({ tokenId, organization: 5_000_000_000, until: 2 })
    expect(readMacaroon(mintMacaroon({ tokenId }, key))).toEqual({ tokenId, organization: undefined, until: undefined })
  })

  test('is different each time', () => {
    expect(mintMacaroon({ tokenId }, key)).not.toBe(mintMacaroon({ tokenId }, key))
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

describe('a token with appended caveats', () => {
  const organization = { numericId: 300, readOnly: false }
  const issued = mintMacaroon({ tokenId, organization, app: 7, validity: { from: 1, until: 2_000_000_000 } }, key)
  const onlyRead = caveat.action(masks.r)

  test('is reduced to the token that was issued, and the caveats', () => {
    const found = verifyAttenuation(attenuate(issued, onlyRead, caveat.validity(5, 60)), key)
    expect(found?.text).toBe(issued)
    expect(found?.attenuation).toMatchObject({
      caveats: [
        { type: 'action', mask: 1 },
        { type: 'validity', from: 5, until: 60 },
      ],
      until: 60_000,
    })
  })

  test('is told apart from others of the same origin, without revealing its signature', () => {
    const [one, other] = [attenuate(issued, onlyRead), attenuate(issued, onlyRead, onlyRead)]
    const digests = [one, other, one].map((token) => verifyAttenuation(token, key)!.attenuation!.digest)
    expect(new Set(digests).size).toBe(2)
    expect(one).not.toContain(digests[0]!)
  })

  test('is refused with another secret, when a byte is changed, and when a caveat is removed, reordered or changed', () => {
    const token = attenuate(issued, onlyRead, caveat.organization(300, masks.r))
    expect(verifyAttenuation(token, Buffer.alloc(32, 8))).toBeUndefined()
    const bytes = bytesOf(token)
    for (let at = 0; at < bytes.length; at++) {
      const changed = Buffer.from(bytes)
      changed[at]! ^= 1
      const found = verifyAttenuation(`fm2_${changed.toString('base64')}`, key)
      // A token of another format is looked up as it is, and no such token was issued.
      expect(found?.attenuation, `byte ${at}`).toBeUndefined()
      if (found) expect(found.text).not.toBe(issued)
    }
    const [nonce, location, caveats, tail] = unpack(bytes) as [Packed, Packed, Packed[], Packed]
    const withCaveats = (list: Packed[]) => `fm2_${pack([nonce, location, list, tail]).toString('base64')}`
    for (const list of [
      caveats.slice(0, -2),
      [...caveats.slice(0, -4), ...caveats.slice(-2), ...caveats.slice(-4, -2)],
      [...caveats.slice(0, -2), 0, [300, 31]],
      caveats.slice(2),
      caveats.slice(0, -1),
    ])
      expect(verifyAttenuation(withCaveats(list), key)).toBeUndefined()
  })

  test('is refused with an unknown caveat, or more than the platform evaluates', () => {
    expect(verifyAttenuation(attenuate(issued, caveat.unknown()), key)).toBeUndefined()
    expect(verifyAttenuation(attenuate(issued, caveat.ifPresent([caveat.unknown()], 31)), key)).toBeUndefined()
    const many = (count: number) => attenuate(issued, ...Array.from({ length: count }, () => onlyRead))
    expect(verifyAttenuation(many(64), key)?.text).toBe(issued)
    expect(verifyAttenuation(many(65), key)).toBeUndefined()
  })

  test('is not derived from a token of an earlier version, whose key was not kept', () => {
    const nonce = pack([Buffer.from(`berth/${tokenId}`), random, false])
    const old = `fm2_${pack([unpack(nonce)!, 'https://api.fly.io/v1', [], hmac(signingKey, nonce)]).toString('base64')}`
    const found = verifyAttenuation(attenuate(old, onlyRead), key)
    expect(found).toEqual({ text: attenuate(old, onlyRead), attenuation: undefined })
  })

  test('can have any bytes without an exception', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 100 }), fc.nat(200), fc.nat(), (bytes, at, cut) => {
        const token = bytesOf(attenuate(issued, onlyRead))
        const spliced = Buffer.concat([token.subarray(0, at), Buffer.from(bytes), token.subarray(at + (cut % 100))])
        const found = verifyAttenuation(`fm2_${spliced.toString('base64')}`, key)
        if (found?.attenuation) expect(spliced.equals(token)).toBe(true)
      }),
      { numRuns: 2000 },
    )
  })
})
