/** The platform said no. `body` is its answer, as it was sent. */
export class Refusal extends Error {
  override readonly name = 'Refusal'
  readonly status: number
  readonly body: unknown

  constructor(status: number, message: string, body: unknown) {
    super(message)
    this.status = status
    this.body = body
  }
}

/** The command cannot be run as it was given; nothing was asked of the platform. */
export class Misuse extends Error {
  override readonly name = 'Misuse'
}

/** Somebody stopped the waiting. What was waited for goes on. */
export class Interruption extends Error {
  override readonly name = 'Interruption'
}

/** What was asked for is known, and it did not happen: the platform is away, or the person answered no. */
export class Failure extends Error {
  override readonly name = 'Failure'
  /** Further lines, which are shown below the sentence. */
  readonly details: string[]

  constructor(message: string, { details = [], ...options }: ErrorOptions & { details?: string[] } = {}) {
    super(message, options)
    this.details = details
  }
}
