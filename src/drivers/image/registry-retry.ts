import { setTimeout as sleep } from 'node:timers/promises'
import { ImageError } from './driver.ts'

/** Registries that ask for a longer delay are given up; the loop retries the pull later. */
const maxRetryAfterSeconds = 5
const backoffMs = 250

/** A failure that a retry may overcome. */
export class TransientError extends Error {
  readonly waitMs: number
  constructor(message: string, retryAfter?: string) {
    super(message)
    this.waitMs = Math.min(Number(retryAfter ?? 0) || 0, maxRetryAfterSeconds) * 1000
  }
}

const transientCodes = new Set([
  'ECONNRESET',
  'ECONNREFUSED',
  'ETIMEDOUT',
  'EPIPE',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ERR_STREAM_PREMATURE_CLOSE',
])

function isTransient(error: unknown): boolean {
  if (error instanceof TransientError) return true
  const { code, message } = error as NodeJS.ErrnoException
  return transientCodes.has(code ?? '') || message === 'aborted'
}

export interface Retry {
  run<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>
  /** Waits before the next attempt, or throws when the error is final or the attempts are used up. */
  pause(error: unknown, tries: number, signal: AbortSignal): Promise<void>
}

export function registryRetry(registry: string, maxTries: number): Retry {
  function asUnreachable(error: unknown): unknown {
    const { code, message } = error as NodeJS.ErrnoException
    // Errors without a code do not come from the network.
    if (error instanceof ImageError || (!(error instanceof TransientError) && code === undefined)) return error
    const reason = error instanceof TransientError ? message : `The registry ${registry} cannot be reached (${code})`
    return new ImageError('unreachable', `${reason}: check its name, or try again later`, error)
  }

  async function pause(error: unknown, tries: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if (error instanceof ImageError || !isTransient(error)) throw asUnreachable(error)
    if (tries >= maxTries) throw asUnreachable(error)
    await sleep(Math.max(backoffMs * tries, error instanceof TransientError ? error.waitMs : 0), undefined, { signal })
  }

  return {
    pause,
    async run(work, signal) {
      for (let tries = 1; ; tries++) {
        try {
          return await work()
        } catch (error) {
          await pause(error, tries, signal)
        }
      }
    },
  }
}
