import type { Secret } from '../../model/app/secret.ts'
import { seal, unseal } from '../../model/seal.ts'
import type { Query, Tx } from '../db.ts'

const columns = `name, digest, created_at as "createdAt", updated_at as "updatedAt", value`

export interface SecretList {
  /** Incremented by every change. */
  version: number
  secrets: Secret[]
}

/** The secrets of an existing app, sorted by name. */
export async function listSecrets(db: Query, appId: string): Promise<SecretList> {
  const { rows } = await db.query<Secret & { version: number }>({
    name: 'list-secrets',
    // One statement reads both, so that the version matches the secrets.
    text: `select app.secrets_version as version, found.* from app left join lateral (
             select ${columns} from secret where app_id = app.id) found on true
           where app.id = $1 order by found.name`,
    values: [appId],
  })
  return { version: rows[0]?.version ?? 0, secrets: rows.filter((row) => row.name !== null) }
}

/** The version of an app's secrets and keys; 0 when the app is gone. */
export async function readSecretsVersion(db: Query, appId: string): Promise<number> {
  const { rows } = await db.query<{ version: number }>({
    name: 'read-secrets-version',
    text: 'select secrets_version as version from app where id = $1',
    values: [appId],
  })
  return rows[0]?.version ?? 0
}

/** Increments the version of an app's secrets, and locks them until the transaction ends. */
export async function nextSecretsVersion(tx: Tx, appId: string): Promise<number | undefined> {
  const { rows } = await tx.query<{ version: number }>({
    name: 'next-secrets-version',
    text: `update app set secrets_version = secrets_version + 1 where id = $1 and state = 'active'
           returning secrets_version as version`,
    values: [appId],
  })
  return rows[0]?.version
}

export async function putSecret(
  tx: Tx,
  appId: string,
  secret: Pick<Secret, 'name' | 'digest' | 'value'>,
): Promise<void> {
  await tx.query({
    name: 'put-secret',
    text: `insert into secret (app_id, name, value, digest) values ($1, $2, $3, $4)
           on conflict (app_id, name) do update set value = excluded.value, digest = excluded.digest, updated_at = now()`,
    values: [appId, secret.name, secret.value, secret.digest],
  })
}

/** Returns how many of the names existed. */
export async function removeSecrets(tx: Tx, appId: string, names: string[]): Promise<number> {
  const { rowCount } = await tx.query('delete from secret where app_id = $1 and name = any($2)', [appId, names])
  return rowCount ?? 0
}

export async function measureSecrets(tx: Tx, appId: string): Promise<{ count: number; bytes: number }> {
  const { rows } = await tx.query<{ count: number; bytes: number }>(
    `select count(*) as count, coalesce(sum(length(name) + octet_length(value) - 28), 0)::bigint as bytes
     from secret where app_id = $1`,
    [appId],
  )
  return rows[0]!
}

/** Encrypts the current secrets for a machine version, which keeps them for its lifetime. */
export async function sealSecretsForMachine(
  tx: Query,
  appId: string,
  encryptionKey: Buffer,
): Promise<{ version: number; sealed: Buffer }> {
  const { version, secrets } = await listSecrets(tx, appId)
  const values = Object.fromEntries(
    secrets.map(({ name, value }) => [name, unseal(encryptionKey, value).toString()] as const),
  )
  return { version, sealed: seal(encryptionKey, Buffer.from(JSON.stringify(values))) }
}

export function openSealedSecrets(sealed: Buffer, encryptionKey: Buffer): Record<string, string> {
  return JSON.parse(unseal(encryptionKey, sealed).toString())
}
