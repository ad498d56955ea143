import { setTimeout as sleep } from 'node:timers/promises'
import { OutboundError } from '../network/guarded-http.ts'
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

/**
 * The only error for a registry that is refused, does not answer or answers nonsense. Its text does not say which, so
 * that it cannot be used to explore the networks of the host.
 */
export function unreachable(registry: string, cause: unknown): ImageError {
  const advice = 'check its name, or try again later; the operator has to allow registries in private networks'
  return new ImageError('unreachable', `The registry ${registry} cannot be reached: ${advice}`, cause)
}

export interface Retry {
  run<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>
  /** Waits before the next attempt, or throws when the error is final or the attempts are used up. */
  pause(error: unknown, tries: number, signal: AbortSignal): Promise<void>
}

export function registryRetry(registry: string, maxTries: number): Retry {
  async function pause(error: unknown, tries: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const isTransient = error instanceof TransientError || (error instanceof OutboundError && error.isTransient)
    if (isTransient && tries < maxTries) {
      const waitMs = Math.max(backoffMs * tries, error instanceof TransientError ? error.waitMs : 0)
      return sleep(waitMs, undefined, { signal })
    }
    throw isTransient || error instanceof OutboundError ? unreachable(registry, error) : error
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
