import type { FastifyError } from 'fastify'
import { Type } from 'typebox'
import { BerthError, type ErrorCode, errorTable } from '../../model/errors.ts'

/** The two API listeners; they report errors in different formats. */
export type Area = 'platform' | 'sandbox'

export const PlatformProblem = Type.Object(
  {
    error: Type.String({ description: 'A message for people.' }),
    status: Type.Optional(Type.String({ description: 'A code for programs, such as `name_taken`.' })),
  },
  { title: 'Error' },
)

export const SandboxProblem = Type.Object(
  {
    error: Type.String({ description: 'A code for programs, such as `not_found`.' }),
    message: Type.String({ description: 'A message for people.' }),
    code: Type.Optional(Type.String({ description: 'The error code of a file operation, such as `ENOENT`.' })),
    path: Type.Optional(Type.String({ description: 'The file that the error is about.' })),
    limit: Type.Optional(
      Type.Integer({ description: 'With 429 and with the error `quota_exceeded`: the limit that was exceeded.' }),
    ),
    window_seconds: Type.Optional(
      Type.Number({ description: 'With 429: the period the limit applies to; 0 for a limit on concurrent resources.' }),
    ),
    retry_after_seconds: Type.Optional(Type.Integer()),
    current_count: Type.Optional(Type.Integer({ description: 'How much of the limit is in use.' })),
    upgrade_available: Type.Optional(Type.Boolean()),
    upgrade_url: Type.Optional(Type.String()),
  },
  { title: 'Error' },
)

export function problemBody(area: Area, error: BerthError): Record<string, unknown> {
  const { status, fields } = error.details
  if (area === 'sandbox')
    return {
      error: status ?? error.code,
      message: error.message,
      ...fields,
      ...excessFields(error),
      ...limitFields(error),
    }
  return { error: error.message, ...(status ? { status } : {}), ...fields }
}

function excessFields({ details: { excess } }: BerthError): Record<string, unknown> {
  return excess ? { limit: excess.limit, current_count: excess.used } : {}
}

/** The fields that sandbox clients expect with a 429. Upgrades do not exist here. */
function limitFields({ details: { limit, retryAfterSeconds = 0 } }: BerthError): Record<string, unknown> {
  if (!limit) return {}
  return {
    limit: limit.max,
    window_seconds: limit.windowSeconds,
    retry_after_seconds: retryAfterSeconds,
    current_count: limit.max,
    upgrade_available: false,
    upgrade_url: '',
  }
}

function limitHeaders({ details: { limit, retryAfterSeconds = 0 } }: BerthError): Record<string, string> {
  if (!limit) return {}
  return {
    'x-ratelimit-limit': String(limit.max),
    'x-ratelimit-remaining': '0',
    'x-ratelimit-reset': String(Math.ceil(Date.now() / 1000) + retryAfterSeconds),
  }
}

export function problemHeaders(error: BerthError): Record<string, string> {
  const { retryAfterSeconds, allow, headers } = error.details
  return {
    ...headers,
    ...limitHeaders(error),
    ...(error.code === 'unauthorized' ? { 'www-authenticate': 'Bearer' } : {}),
    ...(retryAfterSeconds === undefined ? {} : { 'retry-after': String(retryAfterSeconds) }),
    ...(allow === undefined ? {} : { allow }),
  }
}

/** Converts errors of the HTTP framework; an unknown error becomes a 500 and keeps its cause for the log. */
export function asBerthError(err: unknown): BerthError {
  if (err instanceof BerthError) return err
  const status = (err as FastifyError).statusCode ?? 500
  const code = codeOf(status)
  if (!code || status >= 500) return new BerthError('internal', 'internal error', { cause: err })
  const message = code === 'too_large' ? 'the body is larger than 1 MiB' : (err as Error).message
  return new BerthError(code, message)
}

function codeOf(status: number): ErrorCode | undefined {
  const known = (Object.keys(errorTable) as ErrorCode[]).find((code) => errorTable[code] === status)
  return known ?? (status >= 400 && status < 500 ? 'bad_request' : undefined)
}
