/** The platform answered with an error status. `body` is the parsed answer. */
export class ApiError extends Error {
  override readonly name = 'Refusal'
  readonly status: number
  readonly body: unknown

  constructor(status: number, message: string, body: unknown) {
    super(message)
    this.status = status
    this.body = body
  }
}

/** The command line is not valid. Nothing was sent to the platform. */
export class UsageError extends Error {
  override readonly name = 'Misuse'
}

/** Ctrl-C ended the wait; the operation itself continues on the platform. */
export class InterruptedError extends Error {
  override readonly name = 'Interruption'
}

/** The command was valid but did not succeed: for example, the platform is not reachable or an operation failed. */
export class CommandError extends Error {
  override readonly name = 'Failure'
  /** Lines to show below the message. */
  readonly details: string[]

  constructor(message: string, { details = [], ...options }: ErrorOptions & { details?: string[] } = {}) {
    super(message, options)
    this.details = details
  }
}
