import { expect, test } from 'vitest'
import { PermitLedger } from './permit.ts'

test('all workers together get no more permits than the limit', () => {
  const ledger = new PermitLedger<string>()
  const granted = [ledger.acquire('a', 'x', 2), ledger.acquire('b', 'x', 2), ledger.acquire('b', 'x', 2)]
  expect(granted).toEqual([true, true, false])
  expect(ledger.acquire('b', 'y', 1)).toBe(true)
  expect(ledger.release('a', 'x')).toEqual(['b'])
  expect(ledger.acquire('b', 'x', 2)).toBe(true)
})

test('a worker cannot release a permit that it does not hold', () => {
  const ledger = new PermitLedger<string>()
  ledger.acquire('a', 'x', 1)
  expect([ledger.release('b', 'x'), ledger.release('b', 'none')]).toEqual([[], []])
  expect(ledger.acquire('b', 'x', 1)).toBe(false)
})

test('the permits of a worker that ends are released', () => {
  const ledger = new PermitLedger<string>()
  ledger.acquire('a', 'x', 2)
  ledger.acquire('a', 'x', 2)
  expect(ledger.acquire('b', 'x', 2)).toBe(false)
  expect(ledger.releaseAll('a')).toEqual([['x', ['b']]])
  expect(ledger.acquire('b', 'x', 2)).toBe(true)
})
