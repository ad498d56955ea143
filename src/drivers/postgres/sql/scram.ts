// PostgreSQL accepts a password in the form it stores (a SCRAM verifier, RFC 5803). So the password itself never appears
// in a statement or a log.
import { createHash, createHmac, pbkdf2Sync, randomBytes } from 'node:crypto'

const iterations = 4096
const saltBytes = 16

export function scramVerifier(password: string, salt: Buffer = randomBytes(saltBytes)): string {
  // Other characters would need SASLprep normalization, which clients implement differently.
  if (!/^[\x20-\x7e]+$/.test(password)) throw new Error('a password must consist of printable ASCII characters')
  const salted = pbkdf2Sync(password, salt, iterations, 32, 'sha256')
  const storedKey = createHash('sha256').update(hmac(salted, 'Client Key')).digest('base64')
  const serverKey = hmac(salted, 'Server Key').toString('base64')
  return `SCRAM-SHA-256$${iterations}:${salt.toString('base64')}$${storedKey}:${serverKey}`
}

/** Checks a stored verifier against a password that the platform generated. */
export function isVerifierOf(verifier: string, password: string): boolean {
  const salt = /^SCRAM-SHA-256\$\d+:([^$]+)\$/.exec(verifier)?.[1]
  return salt !== undefined && scramVerifier(password, Buffer.from(salt, 'base64')) === verifier
}

function hmac(key: Buffer, text: string): Buffer {
  return createHmac('sha256', key).update(text).digest()
}
