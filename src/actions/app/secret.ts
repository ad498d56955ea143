import { action, wholeApp } from '../../model/account/access.ts'
import { requireWriter } from '../../model/account/caller.ts'
import { checkSecret, maxSecretBytes, maxSecrets, type Secret, secretDigest } from '../../model/app/secret.ts'
import { BerthError, badRequest, notFound } from '../../model/errors.ts'
import { seal, unseal } from '../../model/seal.ts'
import {
  listSecrets,
  measureSecrets,
  nextSecretsVersion,
  putSecret,
  removeSecrets,
  type SecretList,
} from '../../store/app/secret.ts'
import { appNotFound, getVisibleApp, getWritableApp } from '../../store/app/visible.ts'
import type { Tx } from '../../store/db.ts'
import { requirePermitted } from '../account/access.ts'
import { type Context, checked } from '../context.ts'

export interface ShownSecret extends Omit<Secret, 'value'> {
  /** Present only if requested. */
  value?: string
}

export interface SecretQuery {
  /** Whether to include the values. */
  show: boolean
  /** Fails if the stored version is older. */
  minVersion: number
}

export async function listSecretsOf(ctx: Context, appName: string, query: SecretQuery): Promise<ShownSecret[]> {
  const appId = await getReadable(ctx, appName, query)
  const { version, secrets } = await listSecrets(ctx.db, appId)
  requireVersion(version, query)
  return secrets.map((secret) => shown(ctx, secret, query.show))
}

export async function getSecret(ctx: Context, appName: string, name: string, query: SecretQuery): Promise<ShownSecret> {
  const appId = await getReadable(ctx, appName, query)
  const { version, secrets } = await listSecrets(ctx.db, appId)
  requireVersion(version, query)
  const secret = secrets.find((one) => one.name === name)
  if (!secret) throw secretNotFound()
  return shown(ctx, secret, query.show)
}

/** Changes all secrets or none. Null deletes a secret, even if it does not exist. */
export async function changeSecrets(
  ctx: Context,
  appName: string,
  values: Record<string, string | null>,
): Promise<{ version: number; secrets: ShownSecret[] }> {
  const changes = Object.entries(values)
  await checked(ctx, () => {
    for (const [name, value] of changes) checkSecret(name, value)
  })
  const { version, secrets } = await change(ctx, appName, async (tx, appId) => {
    const removed = changes.filter(([, value]) => value === null).map(([name]) => name)
    if (removed.length > 0) await removeSecrets(tx, appId, removed)
    for (const [name, value] of changes) if (value !== null) await put(ctx, tx, appId, name, value)
  })
  return { version, secrets: secrets.map((secret) => shown(ctx, secret, false)) }
}

export async function setSecret(
  ctx: Context,
  appName: string,
  name: string,
  value: string,
): Promise<{ version: number; secret: ShownSecret }> {
  const { version, secrets } = await changeSecrets(ctx, appName, Object.fromEntries([[name, value]]))
  return { version, secret: secrets.find((one) => one.name === name)! }
}

export interface NewSecret {
  name: string
  value: string
}

/** Sets a secret in the caller's transaction and returns its digest. The caller must have checked access to the app. */
export async function setSecretWith(ctx: Context, tx: Tx, appId: string, { name, value }: NewSecret): Promise<string> {
  const { secrets } = await changeWith(tx, appId, () => put(ctx, tx, appId, name, value))
  return secrets.find((one) => one.name === name)!.digest
}

export async function deleteSecret(ctx: Context, appName: string, name: string): Promise<number> {
  const { version } = await change(ctx, appName, async (tx, appId) => {
    if (name.includes('\0') || (await removeSecrets(tx, appId, [name])) === 0) throw secretNotFound()
  })
  return version
}

async function change(
  ctx: Context,
  appName: string,
  body: (tx: Tx, appId: string) => Promise<void>,
): Promise<SecretList> {
  const app = await getWritableApp(ctx.db, ctx.tokenHash, appName)
  return ctx.db.transaction((tx) => changeWith(tx, app.id, () => body(tx, app.id)))
}

async function changeWith(tx: Tx, appId: string, body: () => Promise<void>): Promise<SecretList> {
  // This comes first, because it locks the secrets.
  if ((await nextSecretsVersion(tx, appId)) === undefined) throw appNotFound()
  await body()
  const { count, bytes } = await measureSecrets(tx, appId)
  if (count > maxSecrets) throw badRequest(`an app has at most ${maxSecrets} secrets`)
  if (bytes > maxSecretBytes) throw badRequest(`all secrets of an app together have at most ${maxSecretBytes} bytes`)
  return listSecrets(tx, appId)
}

async function put(ctx: Context, tx: Tx, appId: string, name: string, value: string): Promise<void> {
  const digest = secretDigest(ctx.encryptionKey, appId, value)
  await putSecret(tx, appId, { name, digest, value: seal(ctx.encryptionKey, Buffer.from(value)) })
}

async function getReadable(ctx: Context, appName: string, { show }: SecretQuery): Promise<string> {
  const { caller, app } = await getVisibleApp(ctx.db, ctx.tokenHash, appName)
  if (show) {
    requireWriter(caller)
    requirePermitted(ctx, wholeApp({ org: app.orgNumericId, app: app.numericId }, action.write))
  }
  return app.id
}

function shown(ctx: Context, secret: Secret, withValue: boolean): ShownSecret {
  const { value, ...rest } = secret
  return withValue ? { ...rest, value: unseal(ctx.encryptionKey, value).toString() } : rest
}

export function requireVersion(version: number, { minVersion }: Pick<SecretQuery, 'minVersion'>): void {
  if (version >= minVersion) return
  throw new BerthError(
    'precondition_failed',
    `the secrets of this app are at version ${version}, older than ${minVersion}`,
  )
}

function secretNotFound() {
  return notFound('secret not found')
}
