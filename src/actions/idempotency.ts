// A request repeated with the same Idempotency-Key gets the first answer again. The answer is written in the transaction
// of the change it reports, so there is no moment at which a crash could leave one without the other.
import { createHash } from 'node:crypto'
import { BerthError, badRequest, conflict, invalid } from '../model/errors.ts'
import { seal, unseal } from '../model/secret.ts'
import { type Db, joinTransaction, type Tx } from '../store/db.ts'
import { findAnswer, lockKey, putAnswer, type RequestKey } from '../store/idempotency.ts'
import { type Context, requireToken } from './context.ts'

export interface Answer {
  status: number
  body: unknown
}

export interface RepeatableRequest {
  key: string
  path: string
  query: unknown
  body: unknown
}

/**
 * Runs `change` once for all requests with this key; `refusalOf` turns an error into the answer the caller reads, which
 * is kept as well, unless it is a 5xx.
 */
export async function runOnce(
  ctx: Context,
  request: RepeatableRequest,
  change: (db: Db) => Promise<Answer>,
  refusalOf: (error: BerthError) => unknown,
): Promise<Answer> {
  if (!/^[\x21-\x7e]{1,255}$/.test(request.key)) {
    throw badRequest('Idempotency-Key must be 1 to 255 visible ASCII characters')
  }
  const { tokenId } = await requireToken(ctx)
  const key: RequestKey = { tokenId, path: request.path, key: request.key }
  const fingerprint = createHash('sha256')
    .update(JSON.stringify([request.query, request.body]))
    .digest()
  return ctx.db.transaction(async (tx) => {
    const known = await findAnswer(tx, key)
    if (!known && !(await lockKey(tx, key))) throw conflict('a request with this Idempotency-Key is still running')
    const first = known ?? (await findAnswer(tx, key)) // what was running a moment ago may have ended
    if (first) {
      if (!first.fingerprint.equals(fingerprint)) {
        throw invalid('this Idempotency-Key was used with another request; use a new key')
      }
      return { status: first.status, body: JSON.parse(unseal(ctx.encryptionKey, first.answer).toString()) }
    }
    const answer = await attempt(tx, change, refusalOf)
    const text = Buffer.from(JSON.stringify(answer.body ?? null))
    await putAnswer(tx, key, { fingerprint, status: answer.status, answer: seal(ctx.encryptionKey, text) })
    return answer
  })
}

async function attempt(
  tx: Tx,
  change: (db: Db) => Promise<Answer>,
  refusalOf: (error: BerthError) => unknown,
): Promise<Answer> {
  try {
    return await joinTransaction(tx).transaction((inner) => change(joinTransaction(inner)))
  } catch (err) {
    if (err instanceof BerthError && err.statusCode < 500) return { status: err.statusCode, body: refusalOf(err) }
    throw err
  }
}
