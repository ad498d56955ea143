import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { OutputRate } from './exec-rate.ts'

beforeEach(() => vi.useFakeTimers({ now: 10_000 }))
afterEach(() => vi.useRealTimers())

test('reports the bytes of the last full second', () => {
  const rate = new OutputRate()
  rate.add(5)
  rate.add(7)
  expect(rate.bytesPerSecond).toBe(0)
  vi.setSystemTime(11_500)
  expect(rate.bytesPerSecond).toBe(12)
  rate.add(1)
  vi.setSystemTime(12_999)
  expect(rate.bytesPerSecond).toBe(1)
})

test('is zero after a second without output', () => {
  const rate = new OutputRate()
  rate.add(5)
  vi.setSystemTime(12_000)
  expect(rate.bytesPerSecond).toBe(0)
})
