import { expect, test } from 'vitest'
import { waitUntil } from './poll.ts'

test('returns true as soon as the condition holds', async () => {
  let calls = 0
  expect(await waitUntil(async () => ++calls === 3, 5)).toBe(true)
  expect(calls).toBe(3)
})

test('checks at least once, also with a timeout of zero', async () => {
  expect(await waitUntil(() => true, 0)).toBe(true)
})

test('returns false on timeout', async () => {
  expect(await waitUntil(() => false, 0.01)).toBe(false)
})

test('passes on an error of the condition', async () => {
  const failing = () => Promise.reject(new Error('no such file'))
  await expect(waitUntil(failing, 5)).rejects.toThrow('no such file')
})
