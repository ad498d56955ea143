import { type Excess, quotaExceeded, tooManyRemovals } from '../model/account/quota.ts'
import { BerthError, badRequest, unavailable } from '../model/errors.ts'

/** Shutting down, starting up, crashed, disk full, too many connections, connection lost. A retry can succeed. */
const temporarySqlStates = new Set(['57P01', '57P02', '57P03', '53100', '53300', '08000', '08003', '08006'])
const temporarySystemErrors = new Set(['ECONNREFUSED', 'ECONNRESET', 'ENOENT', 'EPIPE', 'ETIMEDOUT', 'EAGAIN'])
const temporaryMessages =
  /connection terminated|timeout exceeded when trying to connect|not queryable|client was closed/i

/** What PostgreSQL reports for text with NUL characters, in parameters and in JSON. */
const invalidTextSqlStates = new Set(['22021', '22P05'])

/** What the triggers that count usage report, with the `Excess` as JSON in the detail. */
const quotaErrors: Record<string, (excess: Excess) => BerthError> = { BQ001: quotaExceeded, BQ002: tooManyRemovals }

/** Turns errors that the caller can act on into API errors and returns all others unchanged. */
export function translateError(err: unknown): unknown {
  if (!(err instanceof Error) || err instanceof BerthError) return err
  const code = (err as { code?: string }).code ?? ''
  if (invalidTextSqlStates.has(code)) return badRequest('text must not contain NUL characters')
  const quotaError = quotaErrors[code]
  if (quotaError) return quotaError(JSON.parse((err as { detail?: string }).detail!))
  const isTemporary =
    temporarySqlStates.has(code) || temporarySystemErrors.has(code) || temporaryMessages.test(err.message)
  return isTemporary ? unavailable('the state database is unavailable; try again in a moment', err) : err
}

export async function translatingErrors<R>(answer: Promise<R>): Promise<R> {
  try {
    return await answer
  } catch (err) {
    throw translateError(err)
  }
}
