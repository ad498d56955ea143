import type { Query, Tx } from './db.ts'

export interface StoredAnswer {
  fingerprint: Buffer
  status: number
  answer: Buffer
}

export interface RequestKey {
  tokenId: string
  path: string
  key: string
}

/** Locks the key until the transaction ends. Returns false while another request holds it, in any process. */
export async function lockKey(tx: Tx, request: RequestKey): Promise<boolean> {
  const { rows } = await tx.query<{ locked: boolean }>(
    `select pg_try_advisory_xact_lock(hashtextextended($1, 0)) as locked`,
    [JSON.stringify([request.tokenId, request.path, request.key])],
  )
  return rows[0]!.locked
}

export async function findAnswer(db: Query, request: RequestKey): Promise<StoredAnswer | undefined> {
  const { rows } = await db.query<StoredAnswer>(
    `select fingerprint, status, answer from idempotency
     where token_id = $1 and path = $2 and key = $3 and created_at > now() - interval '24 hours'`,
    [request.tokenId, request.path, request.key],
  )
  return rows[0]
}

/** Also deletes some expired answers, so that no scheduled cleanup is needed. */
export async function putAnswer(tx: Query, request: RequestKey, stored: StoredAnswer): Promise<void> {
  await tx.query(
    `insert into idempotency (token_id, path, key, fingerprint, status, answer) values ($1, $2, $3, $4, $5, $6)
     on conflict (token_id, path, key) do update
       set fingerprint = excluded.fingerprint, status = excluded.status, answer = excluded.answer, created_at = now()`,
    [request.tokenId, request.path, request.key, stored.fingerprint, stored.status, stored.answer],
  )
  await tx.query(
    `delete from idempotency where (token_id, path, key) in (
       select token_id, path, key from idempotency where created_at < now() - interval '24 hours'
       order by created_at limit 100 for update skip locked)`,
  )
}
