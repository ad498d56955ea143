import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
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
  test.each([
    [1, '', 'ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271'],
    [3, 'c2sp.org/XAES-256-GCM', '986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d'],
  ])('encrypt the published test vectors (%i)', (byte, associated, expected) => {
    const nonce = Buffer.from('ABCDEFGHIJKLMNOPQRSTUVWX')
    const sealed = encryptXaes(Buffer.alloc(32, byte), Buffer.from('XAES-256-GCM'), Buffer.from(associated), nonce)
    expect(sealed.subarray(24).toString('hex')).toBe(expected)
  })

  const encrypting = ['xaes256gcm', 'nacl_secretbox', 'nacl_box'] as const

  test.each(encrypting)('of type %s decrypt what they encrypted, and reject modified ciphertext', async (type) => {
    const { key, publicKey } = await generateKey(type)
    expect(await openKey(type, key)).toEqual({ key, publicKey })
    const { key: other } = await generateKey(type)
    const bytes = fc.uint8Array({ maxLength: 100 }).map((array) => Buffer.from(array))
    await fc.assert(
      fc.asyncProperty(bytes, bytes, fc.nat(), async (text, more, at) => {
        const associated = type === 'xaes256gcm' ? more : nothing
        const sealed = await encryptText(type, key, text, associated)
        expect(await decryptText(type, key, sealed, associated)).toEqual(text)
        await expect(decryptText(type, other, sealed, associated)).rejects.toThrow('not made with this key')
        await expect(decryptText(type, key, sealed.subarray(1), associated)).rejects.toThrow('not made with this key')
        sealed[at % sealed.length]! ^= 1
        await expect(decryptText(type, key, sealed, associated)).rejects.toThrow('not made with this key')
        await expect(decryptText(type, key, text, associated)).rejects.toThrow('not made with this key')
      }),
      { numRuns: 50 },
    )
    expect(() => signText(type, key, nothing)).toThrow('cannot sign')
    await expect(openKey(type, Buffer.alloc(31))).rejects.toThrow('value must have 32 bytes')
  })

  test.each(['nacl_secretbox', 'nacl_box'] as const)('of type %s reject associated data', async (type) => {
    const { key } = await generateKey(type)
    for (const use of [encryptText, decryptText])
      await expect(use(type, key, nothing, Buffer.from('more'))).rejects.toThrow('associated_data goes with')
  })

  const signing = secretKeyTypes.filter((type) => !(encrypting as readonly string[]).includes(type))
  test.each(signing)('of type %s sign and verify', async (type) => {
    const { key, publicKey } = await generateKey(type)
    expect(await openKey(type, key)).toEqual({ key, publicKey })
    const text = Buffer.from('text')
    const signature = signText(type, key, text)
    expect(isSignature(type, key, text, signature)).toBe(true)
    expect(isSignature(type, key, Buffer.from('other'), signature)).toBe(false)
    expect(isSignature(type, (await generateKey(type)).key, text, signature)).toBe(false)
    for (const wrong of [nothing, signature.subarray(1), Buffer.alloc(signature.length)]) {
      expect(isSignature(type, key, text, wrong)).toBe(false)
    }
    await expect(encryptText(type, key, text, nothing)).rejects.toThrow('cannot encrypt')
    await expect(openKey(type, Buffer.from('short'))).rejects.toThrow('value must')
  })

  test('are rejected as keys of another type', async () => {
    const [es256, sign] = [await generateKey('es256'), await generateKey('nacl_sign')]
    await expect(openKey('es256', sign.key)).rejects.toThrow('PKCS #8')
    await expect(openKey('nacl_sign', es256.key)).rejects.toThrow('PKCS #8')
  })
})
