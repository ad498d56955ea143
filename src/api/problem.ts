import type { FastifyError } from 'fastify'
import { Type } from 'typebox'
import { BerthError, type ErrorCode, errorTable } from '../model/errors.ts'

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
  },
  { title: 'Error' },
)

export function problemBody(area: Area, error: BerthError): Record<string, unknown> {
  const { status, fields } = error.details
  if (area === 'sandbox') return { error: status ?? error.code, message: error.message, ...fields }
  return { error: error.message, ...(status ? { status } : {}), ...fields }
}

export function problemHeaders(error: BerthError): Record<string, string> {
  const { retryAfterSeconds, allow, headers } = error.details
  return {
    ...headers,
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
