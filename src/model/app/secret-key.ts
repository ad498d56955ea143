import {
  createCipheriv,
  createDecipheriv,
  createHmac,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  type KeyObject,
  randomBytes,
  sign as signWith,
  timingSafeEqual,
  verify as verifyWith,
} from 'node:crypto'
import { badRequest } from '../errors.ts'
import type { Micros } from '../time.ts'

export const secretKeyTypes = [
  'es256',
  'hs256',
  'hs384',
  'hs512',
  'xaes256gcm',
  'nacl_auth',
  'nacl_box',
  'nacl_secretbox',
  'nacl_sign',
] as const
export type SecretKeyType = (typeof secretKeyTypes)[number]

export interface SecretKey {
  name: string
  type: SecretKeyType
  /** Encrypted. */
  key: Buffer
  publicKey: Buffer | null
  createdAt: Micros
  updatedAt: Micros
}

export interface KeyParts {
  key: Buffer
  publicKey: Buffer | null
}

/** The operations of a key type. `open` rejects bytes that are not a valid key. */
interface KeyType {
  generate(): KeyParts | Promise<KeyParts>
  open(bytes: Buffer): KeyParts | Promise<KeyParts>
  sign?(key: Buffer, text: Buffer): Buffer
  verify?(key: Buffer, text: Buffer, signature: Buffer): boolean
  encrypt?(key: Buffer, text: Buffer, associated: Buffer): Buffer | Promise<Buffer>
  decrypt?(key: Buffer, text: Buffer, associated: Buffer): Buffer | Promise<Buffer>
}

const types: Record<SecretKeyType, KeyType> = {
  es256: pairType(() => generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey, 'ec', {
    digest: 'sha256',
    dsaEncoding: 'ieee-p1363',
  }),
  nacl_sign: pairType(() => generateKeyPairSync('ed25519').privateKey, 'ed25519', { digest: null }),
  hs256: macType('sha256', 32),
  hs384: macType('sha384', 48),
  hs512: macType('sha512', 64),
  nacl_auth: macType('sha512', 32, 32),
  nacl_secretbox: {
    ...symmetric(32, 32),
    encrypt: async (key, text, associated) => (await nacl(associated)).sealSecret(key, text),
    decrypt: async (key, text, associated) => (await nacl(associated)).openSecret(key, text),
  },
  nacl_box: {
    generate: () => boxParts(randomBytes(32)),
    open: async (bytes) => boxParts((await symmetric(32, 32).open(bytes)).key),
    async encrypt(key, text, associated) {
      const { publicKeyOf, sealBox } = await nacl(associated)
      return sealBox(publicKeyOf(key), text)
    },
    decrypt: async (key, text, associated) => (await nacl(associated)).openBox(key, text),
  },
  xaes256gcm: { ...symmetric(32, 32), encrypt: encryptXaes, decrypt: decryptXaes },
}

export function readKeyType(type: string): SecretKeyType {
  const known = secretKeyTypes.find((one) => one === type)
  if (known) return known
  throw badRequest(`type must be one of ${secretKeyTypes.join(', ')}`)
}

export async function generateKey(type: SecretKeyType): Promise<KeyParts> {
  return types[type].generate()
}

export async function openKey(type: SecretKeyType, bytes: Buffer): Promise<KeyParts> {
  return types[type].open(bytes)
}

export function signText(type: SecretKeyType, key: Buffer, text: Buffer): Buffer {
  const { sign } = types[type]
  if (!sign) throw badRequest(`a key of type ${type} cannot sign`)
  return sign(key, text)
}

export function isSignature(type: SecretKeyType, key: Buffer, text: Buffer, signature: Buffer): boolean {
  const { verify } = types[type]
  if (!verify) throw badRequest(`a key of type ${type} cannot verify`)
  return verify(key, text, signature)
}

export async function encryptText(type: SecretKeyType, key: Buffer, text: Buffer, associated: Buffer): Promise<Buffer> {
  const { encrypt } = types[type]
  if (!encrypt) throw badRequest(`a key of type ${type} cannot encrypt`)
  return encrypt(key, text, associated)
}

export async function decryptText(type: SecretKeyType, key: Buffer, text: Buffer, associated: Buffer): Promise<Buffer> {
  const { decrypt } = types[type]
  if (!decrypt) throw badRequest(`a key of type ${type} cannot decrypt`)
  return decrypt(key, text, associated)
}

function symmetric(minBytes: number, maxBytes: number): Pick<KeyType, 'generate' | 'open'> {
  return {
    generate: () => ({ key: randomBytes(minBytes), publicKey: null }),
    open(bytes) {
      if (bytes.length >= minBytes && bytes.length <= maxBytes) return { key: bytes, publicKey: null }
      throw badRequest(
        minBytes === maxBytes
          ? `value must have ${minBytes} bytes`
          : `value must have ${minBytes} to ${maxBytes} bytes`,
      )
    },
  }
}

/** NaCl's ciphers have no associated data. The module is loaded on first use. */
async function nacl(associated: Buffer) {
  if (associated.length > 0) throw badRequest('associated_data goes with keys of type xaes256gcm only')
  return import('./secret-key-nacl.ts')
}

/** Raw private and public keys without an encoding. */
async function boxParts(key: Buffer): Promise<KeyParts> {
  const { publicKeyOf } = await import('./secret-key-nacl.ts')
  return { key, publicKey: publicKeyOf(key) }
}

function macType(digest: string, keyBytes: number, length?: number): KeyType {
  const sign = (key: Buffer, text: Buffer) => createHmac(digest, key).update(text).digest().subarray(0, length)
  return {
    ...symmetric(keyBytes, length ?? 1024),
    sign,
    verify(key, text, signature) {
      const right = sign(key, text)
      return right.length === signature.length && timingSafeEqual(right, signature)
    },
  }
}

/** A key pair with the private key as PKCS #8 and the public key as SPKI, both in DER. */
function pairType(
  generate: () => KeyObject,
  algorithm: string,
  { digest, ...options }: { digest: string | null; dsaEncoding?: 'ieee-p1363' },
): KeyType {
  const parts = (key: KeyObject): KeyParts => ({
    key: key.export({ type: 'pkcs8', format: 'der' }),
    publicKey: createPublicKey(key).export({ type: 'spki', format: 'der' }),
  })
  const read = (key: Buffer) => createPrivateKey({ key, type: 'pkcs8', format: 'der' })
  return {
    generate: () => parts(generate()),
    open(bytes) {
      let key: KeyObject | undefined
      try {
        key = read(bytes)
      } catch {
        // The error below replaces OpenSSL's message.
      }
      const isRight =
        key?.asymmetricKeyType === algorithm &&
        (algorithm !== 'ec' || key.asymmetricKeyDetails?.namedCurve === 'prime256v1')
      if (!key || !isRight) throw badRequest('value must be a private key of this type as PKCS #8 in DER')
      return parts(key)
    },
    sign: (key, text) => signWith(digest, text, { key: read(key), ...options }),
    verify: (key, text, signature) =>
      verifyWith(digest, text, { key: createPublicKey(read(key)), ...options }, signature),
  }
}

const nonceBytes = 24
const tagBytes = 16

/** XAES-256-GCM of C2SP, whose 192-bit nonces can be random. The output is nonce ‖ ciphertext ‖ tag. */
export function encryptXaes(key: Buffer, text: Buffer, associated: Buffer, nonce = randomBytes(nonceBytes)): Buffer {
  const cipher = createCipheriv('aes-256-gcm', derivedKey(key, nonce), nonce.subarray(12)).setAAD(associated)
  return Buffer.concat([nonce, cipher.update(text), cipher.final(), cipher.getAuthTag()])
}

function decryptXaes(key: Buffer, text: Buffer, associated: Buffer): Buffer {
  const refusal = badRequest('ciphertext was not made with this key and associated_data')
  if (text.length < nonceBytes + tagBytes) throw refusal
  const nonce = text.subarray(0, nonceBytes)
  const decipher = createDecipheriv('aes-256-gcm', derivedKey(key, nonce), nonce.subarray(12)).setAAD(associated)
  decipher.setAuthTag(text.subarray(-tagBytes))
  try {
    return Buffer.concat([decipher.update(text.subarray(nonceBytes, -tagBytes)), decipher.final()])
  } catch {
    throw refusal
  }
}

/** Derives the AES key: two CMAC blocks over a counter, a label and the first half of the nonce. */
function derivedKey(key: Buffer, nonce: Buffer): Buffer {
  const mask = doubled(block(key, Buffer.alloc(16)))
  const half = (counter: number) => {
    const message = Buffer.concat([Buffer.from([0, counter, 0x58, 0]), nonce.subarray(0, 12)])
    return block(key, Buffer.from(message.map((byte, i) => byte ^ mask[i]!)))
  }
  return Buffer.concat([half(1), half(2)])
}

function block(key: Buffer, text: Buffer): Buffer {
  return createCipheriv('aes-256-ecb', key, null).setAutoPadding(false).update(text)
}

function doubled(text: Buffer): Buffer {
  const value = BigInt(`0x${text.toString('hex')}`) << 1n
  const reduced = value >> 128n ? (value & ((1n << 128n) - 1n)) ^ 0x87n : value
  return Buffer.from(reduced.toString(16).padStart(32, '0'), 'hex')
}
