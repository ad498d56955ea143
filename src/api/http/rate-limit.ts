import { BerthError } from '../../model/errors.ts'

interface Bucket {
  tokens: number
  at: number
}

export interface Rate {
  perSecond: number
  burst: number
}

export const writeRate: Rate = { perSecond: 1, burst: 3 }
export const readRate: Rate = { perSecond: 5, burst: 10 }

/** Buckets that have refilled are as good as absent; they are swept when this many have gathered. */
const sweepAt = 10_000

/** A token bucket per key, in this process: two API processes on one database each allow the rate. */
export function rateLimiter(now: () => number = () => performance.now() / 1000) {
  const buckets = new Map<string, Bucket>()

  function sweep(rate: Rate): void {
    for (const [key, bucket] of buckets) {
      if ((now() - bucket.at) * rate.perSecond >= rate.burst) buckets.delete(key)
    }
  }

  /** `status` is what programs are told where that says more. */
  return function take(key: string, rate: Rate, status?: string): void {
    const bucket = buckets.get(key) ?? { tokens: rate.burst, at: now() }
    const tokens = Math.min(rate.burst, bucket.tokens + (now() - bucket.at) * rate.perSecond)
    if (tokens < 1) {
      const seconds = Math.ceil((1 - tokens) / rate.perSecond)
      throw new BerthError('rate_limited', 'rate limit exceeded', {
        retryAfterSeconds: seconds,
        limit: { most: rate.burst, windowSeconds: rate.burst / rate.perSecond },
        ...(status && { status }),
      })
    }
    if (buckets.size >= sweepAt) sweep(rate)
    buckets.set(key, { tokens: tokens - 1, at: now() })
  }
}
