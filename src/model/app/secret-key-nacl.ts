// The ciphers of NaCl, which are not among those of OpenSSL: XSalsa20 with Poly1305, and X25519 before it for boxes.
import { createPrivateKey, createPublicKey, diffieHellman, randomBytes } from 'node:crypto'
import { hsalsa, secretbox } from '@noble/ciphers/salsa.js'
import { blake2b } from '@noble/hashes/blake2.js'
import { badRequest } from '../errors.ts'

const keyBytes = 32
const nonceBytes = 24
const tagBytes = 16

/** What stands before the 32 bytes of a key in DER. */
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

/** crypto_box_seal, which needs nothing but the public key: a public key made for this once ‖ tag ‖ ciphertext. */
export function sealBox(publicKey: Buffer, text: Buffer, once = randomBytes(keyBytes)): Buffer {
  const oncePublic = publicKeyOf(once)
  const nonce = boxNonce(oncePublic, publicKey)
  return Buffer.concat([oncePublic, secretbox(sharedKey(once, publicKey), nonce).seal(text)])
}

export function openBox(key: Buffer, sealed: Buffer): Buffer {
  const oncePublic = sealed.subarray(0, keyBytes)
  if (oncePublic.length < keyBytes) throw refusal()
  return open(sharedKey(key, oncePublic), boxNonce(oncePublic, publicKeyOf(key)), sealed.subarray(keyBytes))
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

/** Refused for the few public keys that lead every other one to the same secret. */
function exchange(own: ReturnType<typeof createPrivateKey>, other: ReturnType<typeof createPublicKey>): Buffer {
  try {
    return diffieHellman({ privateKey: own, publicKey: other })
  } catch {
    throw refusal()
  }
}

function boxNonce(oncePublic: Buffer, publicKey: Buffer): Buffer {
  return Buffer.from(blake2b(Buffer.concat([oncePublic, publicKey]), { dkLen: nonceBytes }))
}

/** A copy, because words have to stand at a multiple of four. */
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
