// PostgreSQL takes a password also in the form in which it keeps it (RFC 5803), from which nobody can get it back: the
// password itself is in no statement and in no log.
import { createHash, createHmac, pbkdf2Sync, randomBytes } from 'node:crypto'

const iterations = 4096
const saltBytes = 16

export function scramVerifier(password: string, salt: Buffer = randomBytes(saltBytes)): string {
  // Other characters would have to be normalized first, by rules on which clients do not agree.
  if (!/^[\x20-\x7e]+$/.test(password)) throw new Error('a password is made of printable ASCII characters')
  const salted = pbkdf2Sync(password, salt, iterations, 32, 'sha256')
  const storedKey = createHash('sha256').update(keyed(salted, 'Client Key')).digest('base64')
  const serverKey = keyed(salted, 'Server Key').toString('base64')
  return `SCRAM-SHA-256$${iterations}:${salt.toString('base64')}$${storedKey}:${serverKey}`
}

/** Whether this is what PostgreSQL keeps of a password that the platform made. */
export function isVerifierOf(verifier: string, password: string): boolean {
  const salt = /^SCRAM-SHA-256\$\d+:([^$]+)\$/.exec(verifier)?.[1]
  return salt !== undefined && scramVerifier(password, Buffer.from(salt, 'base64')) === verifier
}

function keyed(key: Buffer, text: string): Buffer {
  return createHmac('sha256', key).update(text).digest()
}
