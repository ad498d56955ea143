import { expect, test, vi } from 'vitest'
import { runLongCall } from './long-call.ts'

const patient = { patienceMs: 10_000, onEnd: () => undefined }

test('returns the result of a short call, and the next call is a new one', async () => {
  const owner = {}
  const start = vi.fn(async () => start.mock.calls.length)
  expect(await runLongCall(owner, 'a', start, patient)).toEqual({ is: 'done', value: 1 })
  expect(await runLongCall(owner, 'a', start, patient)).toEqual({ is: 'done', value: 2 })
})

test('lets a long call run, calls onEnd and returns the result once', async () => {
  const owner = {}
  const { promise, resolve } = Promise.withResolvers<string>()
  const woken = Promise.withResolvers<void>()
  const start = vi.fn(() => promise)
  const impatient = { patienceMs: 1, onEnd: woken.resolve }
  expect(await runLongCall(owner, 'a', start, impatient)).toEqual({ is: 'running' })
  expect(await runLongCall(owner, 'a', start, impatient)).toEqual({ is: 'running' })
  resolve('done')
  await woken.promise
  expect(await runLongCall(owner, 'a', start, impatient)).toEqual({ is: 'done', value: 'done' })
  expect(start).toHaveBeenCalledTimes(1)
})

test('throws the error of the call, after which it can be retried', async () => {
  const owner = {}
  const failing = () => Promise.reject(new Error('no'))
  await expect(runLongCall(owner, 'a', failing, patient)).rejects.toThrow('no')
  expect(await runLongCall(owner, 'a', async () => 1, patient)).toEqual({ is: 'done', value: 1 })
})

test('an error that no caller waits for is no unhandled rejection', async () => {
  const owner = {}
  const { promise, reject } = Promise.withResolvers<string>()
  const woken = Promise.withResolvers<void>()
  await runLongCall(owner, 'a', () => promise, { patienceMs: 1, onEnd: woken.resolve })
  reject(new Error('no'))
  await expect(woken.promise).resolves.toEqual(new Error('no'))
})
