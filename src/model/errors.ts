// Every way the platform says no. Adding a refusal means adding a row here; the HTTP status and the documentation
// follow from this table.
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
  internal: 500,
  unavailable: 503,
  no_space: 507,
} as const

export type ErrorCode = keyof typeof errorTable

export interface ErrorDetails {
  /** The code for programs where it says more than the kind of error, such as `name_taken`. */
  status?: string
  /** Further fields of the answer, where an operation documents them. */
  fields?: Record<string, string | number | boolean | null>
  headers?: Record<string, string>
  retryAfterSeconds?: number
  /** Of a refusal because there is too much of something: how much there may be, and in which time if that matters. */
  limit?: { most: number; windowSeconds: number }
  /** Methods the path knows, for a 405. */
  allow?: string
  cause?: unknown
}

/** `message` is for the caller; `cause` is for the log and never leaves the process. */
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

/** Something the platform needs is away for a moment; the same request will work again shortly. */
export function unavailable(message: string, cause?: unknown): BerthError {
  return new BerthError('unavailable', message, { retryAfterSeconds: 1, cause })
}

export function wrongState(state: string, event: string, allowed: readonly string[]): BerthError {
  const hint = allowed.length === 0 ? 'nothing can be asked of it any more' : `possible now: ${allowed.join(', ')}`
  return conflict(`cannot ${event} while ${state}; ${hint}`)
}
