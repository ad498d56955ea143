import { requireWriter } from '../../model/account/caller.ts'
import { checkSecret, maxSecrets } from '../../model/app/secret.ts'
import {
  decryptText,
  encryptText,
  generateKey,
  isSignature,
  type KeyParts,
  openKey,
  readKeyType,
  type SecretKey,
  type SecretKeyType,
  signText,
} from '../../model/app/secret-key.ts'
import { badRequest, conflict, notFound } from '../../model/errors.ts'
import { seal, unseal } from '../../model/seal.ts'
import { nextSecretsVersion, readSecretsVersion } from '../../store/app/secret.ts'
import {
  countSecretKeys,
  findSecretKey,
  listSecretKeys,
  putSecretKey,
  removeSecretKey,
} from '../../store/app/secret-key.ts'
import { appNotFound, getVisibleApp, getWritableApp } from '../../store/app/visible.ts'
import type { Tx } from '../../store/db.ts'
import { type Context, checked } from '../context.ts'
import { requireVersion } from './secret.ts'

/** A key of an app. Reading it fails if the stored version of the app's keys is older than `minVersion`. */
export interface KeyRef {
  app: string
  name: string
  minVersion: number
}

export async function listSecretKeysOf(
  ctx: Context,
  appName: string,
  query: { types?: string | undefined; minVersion: number },
): Promise<SecretKey[]> {
  const { types } = query
  const wanted = await checked(ctx, () => (types ? types.split(',').map(readKeyType) : undefined))
  const { app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  await requireKeysVersion(ctx, app.id, query)
  const keys = await listSecretKeys(ctx.db, app.id)
  return keys.filter(({ type }) => wanted === undefined || wanted.includes(type))
}

export async function getSecretKey(ctx: Context, { app: appName, name, minVersion }: KeyRef): Promise<SecretKey> {
  const { app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  await requireKeysVersion(ctx, app.id, { minVersion })
  return requireKey(name.includes('\0') ? undefined : await findSecretKey(ctx.db, app.id, name))
}

/** Reads the version before the keys, which can therefore only be newer. */
async function requireKeysVersion(ctx: Context, appId: string, query: Pick<KeyRef, 'minVersion'>): Promise<void> {
  if (query.minVersion > 0) requireVersion(await readSecretsVersion(ctx.db, appId), query)
}

export interface ChangedKey {
  version: number
  key: SecretKey
}

/** Replaces an existing key of this name. */
export async function setSecretKey(
  ctx: Context,
  appName: string,
  name: string,
  input: { type: string; value: Buffer },
): Promise<ChangedKey> {
  await getWritableApp(ctx.db, ctx.tokenHash, appName) // unauthorized callers must not see validation errors
  const type = readKeyType(input.type)
  return store(ctx, appName, name, type, await openKey(type, input.value), true)
}

export async function generateSecretKey(
  ctx: Context,
  appName: string,
  name: string,
  asked: string,
): Promise<ChangedKey> {
  await getWritableApp(ctx.db, ctx.tokenHash, appName)
  const type = readKeyType(asked)
  return store(ctx, appName, name, type, await generateKey(type), false)
}

export async function deleteSecretKey(ctx: Context, appName: string, name: string): Promise<number> {
  const { version } = await change(ctx, appName, async (tx, appId) => {
    if (name.includes('\0') || !(await removeSecretKey(tx, appId, name))) throw keyNotFound()
  })
  return version
}

/** Using a key reveals as much as having it, so read-only tokens are rejected. */
async function withKey<T>(
  ctx: Context,
  ref: KeyRef,
  use: (type: SecretKeyType, key: Buffer) => T | Promise<T>,
): Promise<T> {
  const { caller } = await getVisibleApp(ctx.db, ctx.tokenHash, ref.app)
  requireWriter(caller)
  const { type, key } = await getSecretKey(ctx, ref)
  return use(type, unseal(ctx.encryptionKey, key))
}

export function encryptWith(ctx: Context, ref: KeyRef, text: Buffer, associated: Buffer) {
  return withKey(ctx, ref, (type, key) => encryptText(type, key, text, associated))
}

export function decryptWith(ctx: Context, ref: KeyRef, text: Buffer, associated: Buffer) {
  return withKey(ctx, ref, (type, key) => decryptText(type, key, text, associated))
}

export function signWithKey(ctx: Context, ref: KeyRef, text: Buffer) {
  return withKey(ctx, ref, (type, key) => signText(type, key, text))
}

export async function verifyWithKey(
  ctx: Context,
  ref: KeyRef,
  { text, signature }: { text: Buffer; signature: Buffer },
): Promise<void> {
  const isValid = await withKey(ctx, ref, (type, key) => isSignature(type, key, text, signature))
  if (!isValid) throw badRequest('the signature was not made with this key over this plaintext')
}

async function store(
  ctx: Context,
  appName: string,
  name: string,
  type: SecretKeyType,
  { key, publicKey }: KeyParts,
  replaces: boolean,
): Promise<ChangedKey> {
  await checked(ctx, () => checkSecret(name, null))
  const { version, result } = await change(ctx, appName, async (tx, appId) => {
    const sealed = { name, type, key: seal(ctx.encryptionKey, key), publicKey }
    const stored = await putSecretKey(tx, appId, sealed, replaces)
    if (!stored) throw conflict(`the app already has a key ${name}`)
    if ((await countSecretKeys(tx, appId)) > maxSecrets) throw badRequest(`an app has at most ${maxSecrets} keys`)
    return stored
  })
  return { version, key: result }
}

async function change<T>(ctx: Context, appName: string, body: (tx: Tx, appId: string) => Promise<T>) {
  const app = await getWritableApp(ctx.db, ctx.tokenHash, appName)
  return ctx.db.transaction(async (tx) => {
    const version = await nextSecretsVersion(tx, app.id)
    if (version === undefined) throw appNotFound()
    return { version, result: await body(tx, app.id) }
  })
}

function requireKey(key: SecretKey | undefined): SecretKey {
  if (!key) throw keyNotFound()
  return key
}

function keyNotFound() {
  return notFound('secret key not found')
}
