import { randomBytes } from 'node:crypto'

const lowercase = 'abcdefghijklmnopqrstuvwxyz0123456789'
export const base62 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'

/** Uniformly distributed: bytes beyond a multiple of the alphabet's length are discarded. */
export function randomText(length: number, alphabet: string): string {
  const fair = 256 - (256 % alphabet.length)
  let text = ''
  while (text.length < length) {
    for (const byte of randomBytes(length * 2)) {
      if (byte < fair && text.length < length) text += alphabet[byte % alphabet.length]
    }
  }
  return text
}

/** Resource ids are 16 lowercase letters and digits, about 82 bits, so collisions are not handled. */
export function newId(): string {
  return randomText(16, lowercase)
}

/** Machine ids are 14 hexadecimal digits. */
export function newMachineId(): string {
  return randomText(14, '0123456789abcdef')
}

const crockford = '0123456789ABCDEFGHJKMNPQRSTVWXYZ'
const randomBits = 80n
let last = 0n

/** A ULID: 48 bits of milliseconds and 80 random bits in 26 characters. Each is greater than the previous one of the process. */
export function newUlid(nowMs = Date.now()): string {
  const fresh = (BigInt(nowMs) << randomBits) | BigInt(`0x${randomBytes(10).toString('hex')}`)
  // Within one millisecond, and when the clock is set back, the last one is incremented.
  last = fresh >> randomBits > last >> randomBits ? fresh : last + 1n
  let text = ''
  for (let rest = last; text.length < 26; rest >>= 5n) text = crockford[Number(rest & 31n)] + text
  return text
}

export const ulidPattern = /^[0-9A-HJKMNP-TV-Z]{26}$/
