import { expect, test } from 'vitest'
import { linesAfter } from './log.ts'

test.each([
  ['nothing was seen', [], ['a', 'b'], ['a', 'b']],
  ['nothing is new', ['a', 'b'], ['a', 'b'], []],
  ['nothing is new in a longer view', ['b', 'c'], ['a', 'b', 'c'], []],
  ['lines were added', ['a', 'b'], ['a', 'b', 'c', 'd'], ['c', 'd']],
  ['the view moved on', ['a', 'b', 'c'], ['b', 'c', 'd'], ['d']],
  ['more came than the view holds', ['a', 'b'], ['x', 'y'], ['x', 'y']],
  ['a line was said again', ['a', 'b'], ['a', 'b', 'a', 'c'], ['a', 'c']],
  ['the log was emptied', ['a'], [], []],
])('finds the new lines when %s', (_, seen, now, fresh) => {
  expect(linesAfter(seen, now)).toEqual(fresh)
})
