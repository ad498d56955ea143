import { expect, test } from 'vitest'
import { readExpire } from './task.ts'

test.each([
  [90, 90_000],
  ['90', 90_000],
  ['0.5', 500],
  ['1m30s', 90_000],
  ['1h', 3_600_000],
  [3600, 3_600_000],
])('%s is a valid duration of a task', (given, millis) => {
  expect(readExpire(given)).toBe(millis)
})

test.each(['', 'soon', '-5s', 0, -1, '0', '61m', 3600.001, Number.NaN, '1 h'])('%s is rejected', (given) => {
  expect(() => readExpire(given)).toThrow(/^expire must be/)
})
