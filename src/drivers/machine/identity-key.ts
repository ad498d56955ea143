import { createPrivateKey, generateKeyPair, type KeyObject } from 'node:crypto'
import { promisify } from 'node:util'
import { seal, unseal } from '../../model/seal.ts'
import { readIfPresent, readOrCreate } from '../host/file.ts'
import type { Home } from '../host/home.ts'

/** The key that identities of machines are signed with, encrypted in the home. Made when somebody first asks for one. */
export function identityKey(home: Pick<Home, 'path'>, encryptionKey: Buffer): () => Promise<KeyObject> {
  let opened: Promise<KeyObject> | undefined
  return () => {
    opened ??= open(`${home.path}/identity-key`, encryptionKey)
    return opened
  }
}

async function open(file: string, encryptionKey: Buffer): Promise<KeyObject> {
  const fresh = readIfPresent(file) ? undefined : await makeKey()
  const sealed = readOrCreate(file, () => seal(encryptionKey, fresh!))
  return createPrivateKey({ key: unseal(encryptionKey, sealed), type: 'pkcs8', format: 'der' })
}

async function makeKey(): Promise<Buffer> {
  const { privateKey } = await promisify(generateKeyPair)('rsa', { modulusLength: 2048 })
  return privateKey.export({ type: 'pkcs8', format: 'der' })
}
