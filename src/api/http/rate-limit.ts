import { BerthError } from '../../model/errors.ts'

interface Bucket {
  tokens: number
  updatedAt: number
}

export interface Rate {
  perSecond: number
  burst: number
}

export const writeRate: Rate = { perSecond: 1, burst: 3 }
export const readRate: Rate = { perSecond: 5, burst: 10 }

/** Full buckets need not be kept; they are removed once there are this many. */
const maxBuckets = 10_000

/** A token bucket per key. The state is per process: two API processes on one database each allow the full rate. */
export function rateLimiter(now: () => number = () => performance.now() / 1000) {
  const buckets = new Map<string, Bucket>()

  function sweep(rate: Rate): void {
    for (const [key, bucket] of buckets) {
      if ((now() - bucket.updatedAt) * rate.perSecond >= rate.burst) buckets.delete(key)
    }
  }

  /** Throws when the rate is exceeded; `status` replaces the error code that clients read. */
  return function take(key: string, rate: Rate, status?: string): void {
    const bucket = buckets.get(key) ?? { tokens: rate.burst, updatedAt: now() }
    const tokens = Math.min(rate.burst, bucket.tokens + (now() - bucket.updatedAt) * rate.perSecond)
    if (tokens < 1) {
      const seconds = Math.ceil((1 - tokens) / rate.perSecond)
      throw new BerthError('rate_limited', 'rate limit exceeded', {
        retryAfterSeconds: seconds,
        limit: { max: rate.burst, windowSeconds: rate.burst / rate.perSecond },
        ...(status && { status }),
      })
    }
    if (buckets.size >= maxBuckets) sweep(rate)
    buckets.set(key, { tokens: tokens - 1, updatedAt: now() })
  }
}
