import { expect, test } from 'vitest'
import { BerthError } from '../../model/errors.ts'
import { problemBody, problemHeaders } from './problem.ts'
import { rateLimiter } from './rate-limit.ts'

function refusalOf(attempt: () => void): BerthError | undefined {
  try {
    attempt()
    return undefined
  } catch (error) {
    if (error instanceof BerthError) return error
    throw error
  }
}

test('allows a burst and then the rate, per key', () => {
  let now = 0
  const take = rateLimiter(() => now)
  const rate = { perSecond: 1, burst: 3 }
  const attempts = (key: string) => [1, 2, 3, 4].map(() => refusalOf(() => take(key, rate))?.code)
  expect(attempts('one')).toEqual([undefined, undefined, undefined, 'rate_limited'])
  expect(attempts('other')).toEqual([undefined, undefined, undefined, 'rate_limited'])
  now = 1
  expect(attempts('one')).toEqual([undefined, 'rate_limited', 'rate_limited', 'rate_limited'])
})

test('reports the limit in the fields and headers that clients read', () => {
  const take = rateLimiter(() => 0)
  const refusal = refusalOf(() => {
    for (;;) take('key', { perSecond: 0.5, burst: 2 }, 'sprite_creation_rate_limited')
  })!
  expect(problemBody('sandbox', refusal)).toEqual({
    error: 'sprite_creation_rate_limited',
    message: 'rate limit exceeded',
    limit: 2,
    window_seconds: 4,
    retry_after_seconds: 2,
    current_count: 2,
    upgrade_available: false,
    upgrade_url: '',
  })
  expect(problemHeaders(refusal)).toEqual({
    'retry-after': '2',
    'x-ratelimit-limit': '2',
    'x-ratelimit-remaining': '0',
    'x-ratelimit-reset': expect.stringMatching(/^\d{10}$/),
  })
})
