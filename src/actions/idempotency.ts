// A request that is repeated with the same Idempotency-Key gets the first response again. The response is stored in the
// transaction of the change, so that a crash cannot leave one without the other. For a change outside the state database
// it is stored afterwards.
import { createHash } from 'node:crypto'
import { BerthError, badRequest, conflict, invalid } from '../model/errors.ts'
import { seal, unseal } from '../model/seal.ts'
import { checkQuotas } from '../store/account/quota.ts'
import { type Db, joinTransaction, type Query } from '../store/db.ts'
import { findAnswer, lockKey, putAnswer, type RequestKey, type StoredAnswer } from '../store/idempotency.ts'
import { type Context, requireToken } from './context.ts'

export interface Answer {
  status: number
  body: unknown
}

export interface RepeatableRequest {
  key: string
  path: string
  /** Distinguishes tokens that were derived from the same one: what one may read, another may not. */
  attenuation: string
  query: unknown
  body: unknown
  /** Whether the change is outside the state database, such as in a cluster. */
  outside?: boolean | undefined
}

type Change = (db: Db) => Promise<Answer>
type RefusalOf = (error: BerthError) => unknown

/**
 * Runs `change` once for all requests with this key. `refusalOf` turns an error into the response, which is stored as
 * well unless it is a 5xx.
 */
export async function runOnce(
  ctx: Context,
  request: RepeatableRequest,
  change: Change,
  refusalOf: RefusalOf,
): Promise<Answer> {
  const asked = { ...(await identify(ctx, request)), change, refusalOf }
  return request.outside ? runOutside(ctx, asked) : runInTransaction(ctx, asked)
}

function runInTransaction(ctx: Context, asked: Asked): Promise<Answer> {
  return ctx.db.transaction(async (tx) => {
    const known = await findAnswer(tx, asked.key)
    if (!known && !(await lockKey(tx, asked.key))) throw stillRunning()
    const first = known ?? (await findAnswer(tx, asked.key)) // a concurrent request may just have finished
    if (first) return repeated(ctx, asked, first)
    const change = () =>
      joinTransaction(tx).transaction(async (inner) => {
        const answer = await asked.change(joinTransaction(inner))
        await checkQuotas(inner) // the refusal is stored like any other
        return answer
      })
    const answer = await attempt(change, asked.refusalOf)
    await keep(ctx, tx, asked, answer)
    return answer
  })
}

const running = new Set<string>()

/**
 * Runs a change that a transaction cannot roll back. No transaction is open meanwhile, because it would occupy a pooled
 * connection. After a crash before the response is stored, a repeated request runs the change again.
 */
async function runOutside(ctx: Context, asked: Asked): Promise<Answer> {
  const known = await findAnswer(ctx.db, asked.key)
  if (known) return repeated(ctx, asked, known)
  const name = JSON.stringify(asked.key)
  if (running.has(name)) throw stillRunning()
  running.add(name)
  try {
    const first = await findAnswer(ctx.db, asked.key) // a concurrent request may just have finished
    if (first) return repeated(ctx, asked, first)
    const answer = await attempt(() => asked.change(ctx.db), asked.refusalOf)
    await keep(ctx, ctx.db, asked, answer)
    return answer
  } finally {
    running.delete(name)
  }
}

interface Asked {
  key: RequestKey
  fingerprint: Buffer
  change: Change
  refusalOf: RefusalOf
}

async function identify(ctx: Context, request: RepeatableRequest): Promise<Pick<Asked, 'key' | 'fingerprint'>> {
  if (!/^[\x21-\x7e]{1,255}$/.test(request.key)) {
    throw badRequest('Idempotency-Key must be 1 to 255 visible ASCII characters')
  }
  const { tokenId } = await requireToken(ctx)
  const fingerprint = createHash('sha256')
    .update(JSON.stringify([request.query, request.body], inKeyOrder))
    .digest()
  return { key: { tokenId, path: request.path, key: `${request.attenuation}${request.key}` }, fingerprint }
}

/** Some clients write the keys of an object in another order each time. */
function inKeyOrder(_key: string, value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value
  return Object.fromEntries(Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1)))
}

function stillRunning(): BerthError {
  return conflict('a request with this Idempotency-Key is still running')
}

function repeated(ctx: Context, { fingerprint }: Asked, first: StoredAnswer): Answer {
  if (!first.fingerprint.equals(fingerprint)) {
    throw invalid('this Idempotency-Key was used with another request; use a new key')
  }
  return { status: first.status, body: JSON.parse(unseal(ctx.encryptionKey, first.answer).toString()) }
}

async function attempt(change: () => Promise<Answer>, refusalOf: RefusalOf): Promise<Answer> {
  try {
    return await change()
  } catch (err) {
    if (err instanceof BerthError && err.statusCode < 500) return { status: err.statusCode, body: refusalOf(err) }
    throw err
  }
}

async function keep(ctx: Context, db: Query, { key, fingerprint }: Asked, { status, body }: Answer): Promise<void> {
  const text = Buffer.from(JSON.stringify(body ?? null))
  await putAnswer(db, key, { fingerprint, status, answer: seal(ctx.encryptionKey, text) })
}
