import { createPrivateKey, generateKeyPair, type KeyObject } from 'node:crypto'
import { promisify } from 'node:util'
import { seal, unseal } from '../../model/seal.ts'
import { readIfPresent, readOrCreate } from '../host/file.ts'
import type { Home } from '../host/home.ts'

/** Returns the key that signs machine identities. It is stored encrypted in the home and created on first use. */
export function identityKey(home: Pick<Home, 'path'>, encryptionKey: Buffer): () => Promise<KeyObject> {
  let key: Promise<KeyObject> | undefined
  return () => {
    key ??= openKey(`${home.path}/identity-key`, encryptionKey)
    return key
  }
}

async function openKey(file: string, encryptionKey: Buffer): Promise<KeyObject> {
  const fresh = readIfPresent(file) ? undefined : await makeKey()
  const sealed = readOrCreate(file, () => seal(encryptionKey, fresh!))
  return createPrivateKey({ key: unseal(encryptionKey, sealed), type: 'pkcs8', format: 'der' })
}

async function makeKey(): Promise<Buffer> {
  const { privateKey } = await promisify(generateKeyPair)('rsa', { modulusLength: 2048 })
  return privateKey.export({ type: 'pkcs8', format: 'der' })
}
