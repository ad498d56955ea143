// Every error code of the API and its HTTP status. The documentation is generated from this table.
export const errorTable = {
  bad_request: 400,
  unauthorized: 401,
  forbidden: 403,
  not_found: 404,
  method_not_allowed: 405,
  timeout: 408,
  conflict: 409,
  gone: 410,
  precondition_failed: 412,
  too_large: 413,
  range_not_satisfiable: 416,
  invalid: 422,
  rate_limited: 429,
  headers_too_large: 431,
  internal: 500,
  unavailable: 503,
  no_space: 507,
} as const

export type ErrorCode = keyof typeof errorTable

export interface ErrorDetails {
  /** A more specific machine-readable code than the error code, such as `name_taken`. */
  status?: string
  /** Additional fields of the response body that the operation documents. */
  fields?: Record<string, string | number | boolean | null>
  headers?: Record<string, string>
  retryAfterSeconds?: number
  /** The limit that was exceeded; `windowSeconds` is 0 unless the limit is a rate. */
  limit?: { max: number; windowSeconds: number }
  /** The quota of the organization that the request would have exceeded. */
  excess?: { organization: string; quota: string; limit: number; used: number }
  /** The methods the path supports, for the Allow header of a 405. */
  allow?: string
  cause?: unknown
}

/** An error that the API reports to the caller. The message is sent; `cause` is only logged. */
export class BerthError extends Error {
  override readonly name = 'BerthError'
  readonly code: ErrorCode
  readonly details: ErrorDetails

  constructor(code: ErrorCode, message: string, details: ErrorDetails = {}) {
    super(message, { cause: details.cause })
    this.code = code
    this.details = details
  }

  get statusCode(): number {
    return errorTable[this.code]
  }
}

export const badRequest = (message: string) => new BerthError('bad_request', message)
export const unauthorized = (message: string) => new BerthError('unauthorized', message)
export const forbidden = (message: string) => new BerthError('forbidden', message)
export const notFound = (message: string) => new BerthError('not_found', message)
export const preconditionFailed = (message: string) => new BerthError('precondition_failed', message)
export const conflict = (message: string, details: ErrorDetails = {}) => new BerthError('conflict', message, details)
export const invalid = (message: string, details: ErrorDetails = {}) => new BerthError('invalid', message, details)

/** A dependency is temporarily unavailable, and a retry of the same request will succeed. */
export function unavailable(message: string, cause?: unknown): BerthError {
  return new BerthError('unavailable', message, { retryAfterSeconds: 1, cause })
}

export function wrongState(state: string, event: string, allowed: readonly string[]): BerthError {
  const hint = allowed.length === 0 ? 'no command is possible any more' : `possible now: ${allowed.join(', ')}`
  return conflict(`cannot ${event} while ${state}; ${hint}`)
}

/** The messages of an error and of its causes, outermost first, joined with colons. */
export function describeError(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause instanceof Error ? `${error.message}: ${describeError(error.cause)}` : error.message
}
