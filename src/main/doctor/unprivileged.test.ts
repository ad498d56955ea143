import { expect, test } from 'vitest'
import { countIds, firstFreeId } from './unprivileged.ts'

test.each([
  [[], 0],
  [['anna:100000:65536'], 65_536],
  [['1000:100000:65536'], 65_536],
  [['anna:100000:1000', 'anna:300000:65536', 'bob:400000:99999'], 65_536],
  [['annabel:100000:65536', '10:1:2', '# anna', 'anna:100000'], 0],
])('of the lines %j, a user has a range of %i ids', (lines, count) => {
  expect(countIds(lines, 'anna', 1000)).toBe(count)
})

test.each([
  [[], 100_000],
  [['anna:100000:65536', 'bob:165536:65536', '# note', 'carl:x:y'], 231_072],
])('after the lines %j, the first free id is %i', (lines, first) => {
  expect(firstFreeId(lines)).toBe(first)
})
