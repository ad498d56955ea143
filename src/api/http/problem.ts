import type { FastifyError } from 'fastify'
import { Type } from 'typebox'
import { BerthError, type ErrorCode, errorTable } from '../../model/errors.ts'

/** The platform's two addresses say no in two shapes. */
export type Area = 'platform' | 'sandbox'

export const PlatformProblem = Type.Object(
  {
    error: Type.String({ description: 'A sentence for people.' }),
    status: Type.Optional(Type.String({ description: 'A code for programs, such as `name_taken`.' })),
  },
  { title: 'Error' },
)

export const SandboxProblem = Type.Object(
  {
    error: Type.String({ description: 'A code for programs, such as `not_found`.' }),
    message: Type.String({ description: 'A sentence for people.' }),
    code: Type.Optional(Type.String({ description: 'What the system inside said to a file operation: `ENOENT`, ….' })),
    path: Type.Optional(Type.String({ description: 'The file that it is about.' })),
    limit: Type.Optional(Type.Integer({ description: 'With 429: how much there may be.' })),
    window_seconds: Type.Optional(
      Type.Number({ description: 'In which time; 0 when it is about what is there at once.' }),
    ),
    retry_after_seconds: Type.Optional(Type.Integer()),
    current_count: Type.Optional(Type.Integer()),
    upgrade_available: Type.Optional(Type.Boolean()),
    upgrade_url: Type.Optional(Type.String()),
  },
  { title: 'Error' },
)

export function problemBody(area: Area, error: BerthError): Record<string, unknown> {
  const { status, fields } = error.details
  if (area === 'sandbox')
    return { error: status ?? error.code, message: error.message, ...fields, ...limitFields(error) }
  return { error: error.message, ...(status ? { status } : {}), ...fields }
}

/** As clients of sandboxes read them. There is nothing to buy. */
function limitFields({ details: { limit, retryAfterSeconds = 0 } }: BerthError): Record<string, unknown> {
  if (!limit) return {}
  return {
    limit: limit.most,
    window_seconds: limit.windowSeconds,
    retry_after_seconds: retryAfterSeconds,
    current_count: limit.most,
    upgrade_available: false,
    upgrade_url: '',
  }
}

function limitHeaders({ details: { limit, retryAfterSeconds = 0 } }: BerthError): Record<string, string> {
  if (!limit) return {}
  return {
    'x-ratelimit-limit': String(limit.most),
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

/** What the HTTP framework refuses by itself becomes one of our errors; anything unknown is ours to answer for. */
export function asBerthError(err: unknown): BerthError {
  if (err instanceof BerthError) return err
  const status = (err as FastifyError).statusCode ?? 500
  const code = codeOf(status)
  if (!code || status >= 500) return new BerthError('internal', 'something went wrong on our side', { cause: err })
  const message = code === 'too_large' ? 'the body is larger than 1 MiB' : (err as Error).message
  return new BerthError(code, message)
}

function codeOf(status: number): ErrorCode | undefined {
  const known = (Object.keys(errorTable) as ErrorCode[]).find((code) => errorTable[code] === status)
  return known ?? (status >= 400 && status < 500 ? 'bad_request' : undefined)
}
