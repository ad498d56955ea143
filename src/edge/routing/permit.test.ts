import { expect, test } from 'vitest'
import { PermitBook } from './permit.ts'

test('no more places are given than there are, to all workers together', () => {
  const book = new PermitBook<string>()
  expect([book.acquire('a', 'x', 2), book.acquire('b', 'x', 2), book.acquire('b', 'x', 2)]).toEqual([true, true, false])
  expect(book.acquire('b', 'y', 1)).toBe(true)
  expect(book.release('a', 'x')).toEqual(['b'])
  expect(book.acquire('b', 'x', 2)).toBe(true)
})

test('what a worker does not hold it cannot give back', () => {
  const book = new PermitBook<string>()
  book.acquire('a', 'x', 1)
  expect([book.release('b', 'x'), book.release('b', 'none')]).toEqual([[], []])
  expect(book.acquire('b', 'x', 1)).toBe(false)
})

test('the places of a worker that ends are free', () => {
  const book = new PermitBook<string>()
  book.acquire('a', 'x', 2)
  book.acquire('a', 'x', 2)
  expect(book.acquire('b', 'x', 2)).toBe(false)
  expect(book.forget('a')).toEqual([['x', ['b']]])
  expect(book.acquire('b', 'x', 2)).toBe(true)
})
