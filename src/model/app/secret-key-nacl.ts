// NaCl's ciphers, which OpenSSL lacks: XSalsa20-Poly1305, and for boxes X25519 key exchange before it.
import { createPrivateKey, createPublicKey, diffieHellman, randomBytes } from 'node:crypto'
import { hsalsa, secretbox } from '@noble/ciphers/salsa.js'
import { blake2b } from '@noble/hashes/blake2.js'
import { badRequest } from '../errors.ts'

const keyBytes = 32
const nonceBytes = 24
const tagBytes = 16

/** The DER prefix of a 32-byte key. */
const derStart = {
  pkcs8: Buffer.from('302e020100300506032b656e04220420', 'hex'),
  spki: Buffer.from('302a300506032b656e032100', 'hex'),
}

/** crypto_secretbox: nonce ‖ tag ‖ ciphertext. */
export function sealSecret(key: Buffer, text: Buffer, nonce = randomBytes(nonceBytes)): Buffer {
  return Buffer.concat([nonce, secretbox(key, nonce).seal(text)])
}

export function openSecret(key: Buffer, sealed: Buffer): Buffer {
  return open(key, sealed.subarray(0, nonceBytes), sealed.subarray(nonceBytes))
}

/** crypto_box_seal, which needs only the public key. The output is ephemeral public key ‖ tag ‖ ciphertext. */
export function sealBox(publicKey: Buffer, text: Buffer, ephemeral = randomBytes(keyBytes)): Buffer {
  const ephemeralPublic = publicKeyOf(ephemeral)
  const nonce = boxNonce(ephemeralPublic, publicKey)
  return Buffer.concat([ephemeralPublic, secretbox(sharedKey(ephemeral, publicKey), nonce).seal(text)])
}

export function openBox(key: Buffer, sealed: Buffer): Buffer {
  const ephemeralPublic = sealed.subarray(0, keyBytes)
  if (ephemeralPublic.length < keyBytes) throw refusal()
  return open(sharedKey(key, ephemeralPublic), boxNonce(ephemeralPublic, publicKeyOf(key)), sealed.subarray(keyBytes))
}

export function publicKeyOf(key: Buffer): Buffer {
  return createPublicKey(privateKey(key)).export({ type: 'spki', format: 'der' }).subarray(-keyBytes)
}

/** crypto_box_beforenm. */
export function sharedKey(key: Buffer, publicKey: Buffer): Buffer {
  const spki = Buffer.concat([derStart.spki, publicKey])
  const shared = exchange(privateKey(key), createPublicKey({ key: spki, type: 'spki', format: 'der' }))
  const derived = new Uint32Array(8)
  hsalsa(wordsOf(Buffer.from('expand 32-byte k')), wordsOf(shared), new Uint32Array(4), derived)
  return Buffer.from(derived.buffer)
}

function privateKey(key: Buffer) {
  return createPrivateKey({ key: Buffer.concat([derStart.pkcs8, key]), type: 'pkcs8', format: 'der' })
}

/** Rejects the low-order public keys, for which the shared secret does not depend on the private key. */
function exchange(own: ReturnType<typeof createPrivateKey>, other: ReturnType<typeof createPublicKey>): Buffer {
  try {
    return diffieHellman({ privateKey: own, publicKey: other })
  } catch {
    throw refusal()
  }
}

function boxNonce(ephemeralPublic: Buffer, publicKey: Buffer): Buffer {
  return Buffer.from(blake2b(Buffer.concat([ephemeralPublic, publicKey]), { dkLen: nonceBytes }))
}

/** Copies the bytes, because a Uint32Array needs 4-byte alignment. */
function wordsOf(bytes: Buffer): Uint32Array {
  return new Uint32Array(new Uint8Array(bytes).buffer)
}

function open(key: Buffer, nonce: Buffer, sealed: Buffer): Buffer {
  if (nonce.length < nonceBytes || sealed.length < tagBytes) throw refusal()
  try {
    return Buffer.from(secretbox(key, nonce).open(sealed))
  } catch {
    throw refusal()
  }
}

function refusal() {
  return badRequest('ciphertext was not made with this key')
}
