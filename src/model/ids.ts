import { randomBytes } from 'node:crypto'

const lowercase = 'abcdefghijklmnopqrstuvwxyz0123456789'
export const base62 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'

/** Uniform over the alphabet: bytes that would favour its first letters are thrown away. */
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

/** The id of every resource: 16 lowercase letters and digits, about 82 bits, so that collisions need no thought. */
export function newId(): string {
  return randomText(16, lowercase)
}
