import fc from 'fast-check'
import { expect, test } from 'vitest'
import { durationOr, formatDuration, goDurationMs, parseDuration } from './duration.ts'

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
])('%s is %d ms', (text, ms) => expect(parseDuration(text)).toBeCloseTo(ms, 9))

test.each(['', '5', 's', '5 s', '5S', '1d', '1e3s', '--5s', '5s ', 'NaN', 'Infinity', '1h-5m', '.s'])(
  '%j is not a duration',
  (text) => expect(parseDuration(text)).toBeUndefined(),
)

test.each([
  ['30d', 30 * 86_400_000],
  ['2w', 14 * 86_400_000],
  ['1y', 365 * 86_400_000],
  ['1d12h', 36 * 3_600_000],
  ['90s', 90_000],
  ['5ms', 5],
])('with calendar units, %s is %d ms', (text, ms) => expect(parseDuration(text, 'calendar')).toBe(ms))

test.each(['', '5', 'd', '1M', '1 d', '1dw'])('%j is not a duration with calendar units either', (text) =>
  expect(parseDuration(text, 'calendar')).toBeUndefined(),
)

test.each([
  [0, '0s'],
  [0.000_5, '500ns'],
  [0.25, '250µs'],
  [200, '200ms'],
  [90_000, '1m30s'],
  [3_600_000, '1h0m0s'],
  [1_500, '1.5s'],
])('%d ms is formatted as %s', (ms, text) => expect(formatDuration(ms)).toBe(text))

test('formatted durations parse to the same time', () => {
  fc.assert(
    fc.property(fc.nat(10_000_000), (ms) => {
      expect(parseDuration(formatDuration(ms))).toBeCloseTo(ms, 6)
    }),
  )
})

test('durations printed by Go parse to the same time', () => {
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

test('an invalid or non-positive duration becomes the default, a long one the longest timer', () => {
  fc.assert(
    fc.property(fc.string(), (text) => {
      const ms = durationOr(text, 5_000)
      expect(ms).toBeGreaterThan(0)
      expect(ms).toBeLessThanOrEqual(86_400_000)
    }),
  )
  expect(durationOr('-5s', 5_000)).toBe(5_000)
  expect(durationOr('0s', 5_000)).toBe(5_000)
  expect(durationOr('9000h', 5_000)).toBe(86_400_000)
})

test('durations of machine configs are Go text or nanoseconds', () => {
  expect(goDurationMs('1m30s')).toBe(90_000)
  expect(goDurationMs(15_000_000_000)).toBe(15_000)
  expect(goDurationMs(undefined)).toBeUndefined()
})
