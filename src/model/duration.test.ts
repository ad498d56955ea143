import fc from 'fast-check'
import { expect, test } from 'vitest'
import { durationOr, parseDuration } from './duration.ts'

test.each([
  ['5s', 5_000],
  ['5.0s', 5_000],
  ['200ms', 200],
  ['1m30s', 90_000],
  ['1h0m0s', 3_600_000],
  ['.5s', 500],
  ['1.s', 1_000],
  ['0', 0],
  ['0s', 0],
  ['-2s', -2_000],
  ['+1us', 0.001],
  ['1µs', 0.001],
  ['1000000ns', 1],
])('%s is %d ms', (text, time) => expect(parseDuration(text)).toBeCloseTo(time, 9))

test.each(['', '5', 's', '5 s', '5S', '1d', '1e3s', '--5s', '5s ', 'NaN', 'Infinity', '1h-5m', '.s'])(
  '%j is no duration',
  (text) => expect(parseDuration(text)).toBeUndefined(),
)

test('what Go prints is read as the same time', () => {
  const parts = fc.record({ h: fc.nat(9), m: fc.nat(59), s: fc.nat(59), ms: fc.nat(999) })
  fc.assert(
    fc.property(parts, ({ h, m, s, ms }) => {
      expect(parseDuration(`${h}h${m}m${s}s${ms}ms`)).toBe(((h * 60 + m) * 60 + s) * 1000 + ms)
      expect(parseDuration(`${h}h${m}m${s}.${String(ms).padStart(3, '0')}s`)).toBeCloseTo(
        ((h * 60 + m) * 60 + s) * 1000 + ms,
      )
    }),
  )
})

test('nothing that a caller sends is refused', () => {
  fc.assert(
    fc.property(fc.string(), (text) => {
      const time = durationOr(text, 5_000)
      expect(time).toBeGreaterThan(0)
      expect(time).toBeLessThanOrEqual(86_400_000)
    }),
  )
  expect(durationOr('-5s', 5_000)).toBe(5_000)
  expect(durationOr('0s', 5_000)).toBe(5_000)
  expect(durationOr('9000h', 5_000)).toBe(86_400_000)
})
