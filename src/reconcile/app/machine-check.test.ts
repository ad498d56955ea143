import { expect, test } from 'vitest'
import { firstPauseMs } from './machine-check.ts'

test('a check that has never passed is repeated often at first and less often with time', () => {
  expect([0, 500, 10_000, 150_000].map(firstPauseMs)).toEqual([100, 100, 1_000, 15_000])
})
