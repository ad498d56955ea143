import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  decryptText,
  encryptText,
  encryptXaes,
  generateKey,
  isSignature,
  openKey,
  secretKeyTypes,
  signText,
} from './secret-key.ts'

const nothing = Buffer.alloc(0)

describe('keys', () => {
  // The vectors of c2sp.org/XAES-256-GCM.
  it.each([
    [1, '', 'ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271'],
    [3, 'c2sp.org/XAES-256-GCM', '986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d'],
  ])('encrypt as written down (%i)', (byte, associated, expected) => {
    const nonce = Buffer.from('ABCDEFGHIJKLMNOPQRSTUVWX')
    const sealed = encryptXaes(Buffer.alloc(32, byte), Buffer.from('XAES-256-GCM'), Buffer.from(associated), nonce)
    expect(sealed.subarray(24).toString('hex')).toBe(expected)
  })

  it('give back what they encrypted, and nothing that was changed', () => {
    const { key } = generateKey('xaes256gcm')
    const bytes = fc.uint8Array({ maxLength: 100 }).map((array) => Buffer.from(array))
    fc.assert(
      fc.property(bytes, bytes, fc.nat(), (text, associated, at) => {
        const sealed = encryptText('xaes256gcm', key, text, associated)
        expect(decryptText('xaes256gcm', key, sealed, associated)).toEqual(text)
        sealed[at % sealed.length]! ^= 1
        expect(() => decryptText('xaes256gcm', key, sealed, associated)).toThrow('not made with this key')
        expect(() => decryptText('xaes256gcm', key, text, associated)).toThrow('not made with this key')
      }),
      { numRuns: 50 },
    )
  })

  it.each(secretKeyTypes.filter((type) => type !== 'xaes256gcm'))('of type %s sign and verify', (type) => {
    const { key, publicKey } = generateKey(type)
    expect(openKey(type, key)).toEqual({ key, publicKey })
    const text = Buffer.from('text')
    const signature = signText(type, key, text)
    expect(isSignature(type, key, text, signature)).toBe(true)
    expect(isSignature(type, key, Buffer.from('other'), signature)).toBe(false)
    expect(isSignature(type, generateKey(type).key, text, signature)).toBe(false)
    for (const wrong of [nothing, signature.subarray(1), Buffer.alloc(signature.length)]) {
      expect(isSignature(type, key, text, wrong)).toBe(false)
    }
    expect(() => encryptText(type, key, text, nothing)).toThrow('cannot encrypt')
    expect(() => openKey(type, Buffer.from('short'))).toThrow('value must')
  })

  it('are not taken for those of another kind', () => {
    expect(() => openKey('es256', generateKey('nacl_sign').key)).toThrow('PKCS #8')
    expect(() => openKey('nacl_sign', generateKey('es256').key)).toThrow('PKCS #8')
    expect(() => signText('xaes256gcm', Buffer.alloc(32), nothing)).toThrow('cannot sign')
  })
})
