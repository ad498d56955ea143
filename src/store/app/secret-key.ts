import type { SecretKey } from '../../model/app/secret-key.ts'
import type { Query, Tx } from '../db.ts'

const columns = `name, type, key, public_key as "publicKey", created_at as "createdAt", updated_at as "updatedAt"`

/** By name. */
export async function listSecretKeys(db: Query, appId: string): Promise<SecretKey[]> {
  const { rows } = await db.query<SecretKey>({
    name: 'list-secret-keys',
    text: `select ${columns} from secret_key where app_id = $1 order by name`,
    values: [appId],
  })
  return rows
}

export async function findSecretKey(db: Query, appId: string, name: string): Promise<SecretKey | undefined> {
  const { rows } = await db.query<SecretKey>({
    name: 'find-secret-key',
    text: `select ${columns} from secret_key where app_id = $1 and name = $2`,
    values: [appId, name],
  })
  return rows[0]
}

export type NewSecretKey = Pick<SecretKey, 'name' | 'type' | 'key' | 'publicKey'>

/** Returns undefined when the name is taken and must not be replaced. */
export async function putSecretKey(
  tx: Tx,
  appId: string,
  key: NewSecretKey,
  replaces: boolean,
): Promise<SecretKey | undefined> {
  const { rows } = await tx.query<SecretKey>(
    `insert into secret_key (app_id, name, type, key, public_key) values ($1, $2, $3, $4, $5)
     on conflict (app_id, name) do update set type = $3, key = $4, public_key = $5, updated_at = now() where $6
     returning ${columns}`,
    [appId, key.name, key.type, key.key, key.publicKey, replaces],
  )
  return rows[0]
}

export async function removeSecretKey(tx: Tx, appId: string, name: string): Promise<boolean> {
  const { rowCount } = await tx.query('delete from secret_key where app_id = $1 and name = $2', [appId, name])
  return rowCount === 1
}

export async function countSecretKeys(tx: Tx, appId: string): Promise<number> {
  const { rows } = await tx.query<{ count: number }>('select count(*) as count from secret_key where app_id = $1', [
    appId,
  ])
  return rows[0]!.count
}
