import { describe, expect, test } from 'vitest'
import { openBox, openSecret, publicKeyOf, sealBox, sealSecret, sharedKey } from './secret-key-nacl.ts'

const bytes = (hex: string) => Buffer.from(hex.replaceAll(/\s/g, ''), 'hex')

describe('the ciphers of NaCl', () => {
  // The vectors that NaCl itself is tested with.
  const alicePublic = bytes('8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a')
  const bob = bytes('5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb')
  const shared = '1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389'
  const nonce = bytes('69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37')
  const text =
    bytes(`be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a1ac728d45e6c61296cdc3c01
    233561f41db66cce314adb310e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde048977eb48f59ffd4924ca1c60
    902e52f0a089bc76897040e082f937763848645e0705`)
  const sealed =
    bytes(`f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186ac0dfc1
    7c98dce87b4da7f011ec48c97271d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae90224368517acfeabd6bb373
    2bc0e9da99832b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5`)

  test('compute the shared secret of two keys', () => {
    expect(publicKeyOf(bob).toString('hex')).toBe('de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f')
    expect(sharedKey(bob, alicePublic).toString('hex')).toBe(shared)
  })

  test('seal and open the published test vectors', () => {
    expect(sealSecret(bytes(shared), text, nonce)).toEqual(Buffer.concat([nonce, sealed]))
    expect(openSecret(bytes(shared), Buffer.concat([nonce, sealed]))).toEqual(text)
  })

  // Made with libsodium.
  test('seal and open anonymous boxes', () => {
    const [key, message] = [Buffer.alloc(32, 1), Buffer.alloc(64, 3)]
    const box =
      bytes(`50a61409b1ddd0325e9b16b700e719e9772c07000b1bd7786e907c653d20495d2af1697137a53b1b1dfc9befc49b6eeb38f86be720
      e155eb2be61976d2efb34d67ecd44a6ad634625eb9c288bfc883431a84ab0f5557dfe673aa6f74c19f033e648a947358cfcc606397fa1747d5
      219a`)
    expect(sealBox(publicKeyOf(key), message, Buffer.alloc(32, 5))).toEqual(box)
    expect(openBox(key, box)).toEqual(message)
  })

  test('reject low-order public keys', () => {
    expect(() => openBox(bob, Buffer.alloc(64))).toThrow('not made with this key')
  })
})
