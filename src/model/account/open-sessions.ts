// The connections and requests in progress, by the token that they were opened with, so that none outlives its token.

export interface OpenSessionsOptions {
  /** Returns those of the tokens that are still valid, with the time of their expiry in milliseconds since the epoch. */
  listValid(tokens: string[]): Promise<ReadonlyMap<string, number | null>>
}

interface Session {
  openedAt: number
  close(): void
}

/** Most requests end before this, so their tokens are never looked up a second time. */
const firstCheckMs = 100

/** A lost notification is made up for by checking this often. */
const pollMs = 5_000
const retryMs = 250

export class OpenSessions {
  readonly #listValid: OpenSessionsOptions['listValid']
  readonly #byToken = new Map<string, Set<Session>>()
  #timer: NodeJS.Timeout | undefined
  #dueAt = Number.POSITIVE_INFINITY
  #isChecking = false
  /** A token changed while a check was running. */
  #isStale = false
  #isStopped = false

  constructor({ listValid }: OpenSessionsOptions) {
    this.#listValid = listValid
  }

  /**
   * Calls `close` when the token is no longer valid. To be called before the token is checked: a token that is revoked
   * in between is then found by one or the other. Returns the function to call when the session has ended. A session can
   * have an end of its own, in milliseconds since the epoch, before that of the token.
   */
  add(token: string, close: () => void, until = Number.POSITIVE_INFINITY): () => void {
    const session: Session = { openedAt: performance.now(), close }
    let sessions = this.#byToken.get(token)
    if (!sessions) {
      sessions = new Set()
      this.#byToken.set(token, sessions)
      this.#schedule(firstCheckMs)
    }
    sessions.add(session)
    const cancel = callAt(until, () => {
      this.#remove(token, session)
      close()
    })
    return () => {
      cancel()
      this.#remove(token, session)
    }
  }

  /** Checks all tokens at once. To be called when a token has changed. */
  check(): void {
    if (this.#isChecking) this.#isStale = true
    else void this.#run(0)
  }

  stop(): void {
    this.#isStopped = true
    clearTimeout(this.#timer)
  }

  #remove(token: string, session: Session): void {
    const sessions = this.#byToken.get(token)
    if (sessions?.delete(session) && sessions.size === 0) this.#byToken.delete(token)
  }

  #schedule(ms: number): void {
    const dueAt = performance.now() + ms
    if (this.#isStopped || dueAt >= this.#dueAt) return
    clearTimeout(this.#timer)
    this.#dueAt = dueAt
    this.#timer = setTimeout(() => {
      this.#dueAt = Number.POSITIVE_INFINITY
      if (!this.#isChecking) void this.#run(firstCheckMs)
    }, ms)
    this.#timer.unref()
  }

  /** Checks the tokens of the sessions that have been open for this long. */
  async #run(openMs: number): Promise<void> {
    this.#isChecking = true
    const startedAt = performance.now()
    const tokens = this.#listTokens(startedAt - openMs)
    try {
      const valid = tokens.length === 0 ? new Map<string, null>() : await this.#listValid(tokens)
      for (const token of tokens) if (!valid.has(token)) this.#close(token, startedAt)
      this.#scheduleNext(valid)
    } catch {
      this.#schedule(retryMs) // sessions stay open while the tokens cannot be looked up
    }
    this.#isChecking = false
    if (this.#isStale && !this.#isStopped) {
      this.#isStale = false
      void this.#run(0)
    }
  }

  #listTokens(openedUntil: number): string[] {
    const tokens: string[] = []
    for (const [token, sessions] of this.#byToken) {
      const [oldest] = sessions
      if (oldest && oldest.openedAt <= openedUntil) tokens.push(token)
    }
    return tokens
  }

  #close(token: string, openedUntil: number): void {
    for (const session of this.#byToken.get(token) ?? []) {
      if (session.openedAt > openedUntil) continue
      this.#remove(token, session)
      session.close()
    }
  }

  #scheduleNext(valid: ReadonlyMap<string, number | null>): void {
    if (this.#byToken.size === 0) return
    let delayMs = pollMs
    for (const expiry of valid.values()) if (expiry !== null) delayMs = Math.min(delayMs, expiry - Date.now())
    for (const token of this.#byToken.keys()) if (!valid.has(token)) delayMs = firstCheckMs
    this.#schedule(Math.max(firstCheckMs, delayMs))
  }
}

/** Timers cannot wait for longer. */
const maxTimerMs = 2 ** 31 - 1

/** Returns the function that cancels the call. */
function callAt(timeMs: number, call: () => void): () => void {
  if (timeMs === Number.POSITIVE_INFINITY) return () => {}
  let timer: NodeJS.Timeout
  const wait = () => {
    const leftMs = timeMs - Date.now()
    timer = leftMs > 0 ? setTimeout(wait, Math.min(leftMs, maxTimerMs)).unref() : setTimeout(call).unref()
  }
  wait()
  return () => clearTimeout(timer)
}
