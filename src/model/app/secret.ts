import { createHmac } from 'node:crypto'
import { badRequest } from '../errors.ts'
import type { Micros } from '../time.ts'

/** A secret of an app, which its machines get as an environment variable. */
export interface Secret {
  name: string
  digest: string
  createdAt: Micros
  updatedAt: Micros
  /** Encrypted. */
  value: Buffer
}

const secretNamePattern = /^[A-Za-z_][A-Za-z0-9_]{0,127}$/

/** Linux limits an environment variable to 128 KiB and all arguments and variables to about 2 MB. */
const maxValueBytes = 65_536
export const maxSecretBytes = 524_288
export const maxSecrets = 1000

export function checkSecret(name: string, value: string | null): void {
  if (!secretNamePattern.test(name)) {
    throw badRequest('the name of a secret must be 1 to 128 letters, digits and underscores, not starting with a digit')
  }
  if (value?.includes('\0')) throw badRequest(`the value of ${name} must not contain NUL characters`)
  if (value !== null && Buffer.byteLength(value) > maxValueBytes) {
    throw badRequest(`the value of ${name} is longer than ${maxValueBytes} bytes`)
  }
}

/** Equal values of one app have equal digests. The digest is keyed, so short values cannot be guessed from it. */
export function secretDigest(key: Buffer, appId: string, value: string): string {
  return createHmac('sha256', key).update(`secret of ${appId}\0${value}`).digest('hex').slice(0, 16)
}
