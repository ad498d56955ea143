import { expect, test } from 'vitest'
import { sharedWork } from './share.ts'

const never = new AbortController().signal

test('runs the work of a key once at a time', async () => {
  const share = sharedWork<number>()
  let runs = 0
  const work = async () => {
    await new Promise((resolve) => setImmediate(resolve))
    return ++runs
  }
  const ignore = () => undefined
  expect(await Promise.all([1, 2, 3].map(() => share('a', work, ignore, never)))).toEqual([1, 1, 1])
  expect(await share('a', work, ignore, never)).toBe(2)
})

test('reports progress and errors to all callers', async () => {
  const share = sharedWork<void>()
  const reported: string[] = []
  const work = async (_: AbortSignal, report: (progress: number) => void) => {
    await new Promise((resolve) => setImmediate(resolve))
    report(7)
    throw new Error('broken')
  }
  const waits = ['a', 'b'].map((name) => share('key', work, (progress) => reported.push(`${name}${progress}`), never))
  for (const wait of waits) await expect(wait).rejects.toThrow('broken')
  expect(reported).toEqual(['a7', 'b7'])
})

test('aborts the work when the last caller leaves, and not before', async () => {
  const share = sharedWork<void>()
  let stopped = false
  const work = (signal: AbortSignal) =>
    new Promise<void>((_, reject) => {
      signal.addEventListener('abort', () => {
        stopped = true
        reject(signal.reason)
      })
    })
  const leaving = [new AbortController(), new AbortController()]
  const waits = leaving.map(({ signal }) => share('key', work, () => undefined, signal))
  leaving[0]!.abort(new Error('first'))
  await expect(waits[0]).rejects.toThrow('first')
  expect(stopped).toBe(false)
  leaving[1]!.abort(new Error('second'))
  await expect(waits[1]).rejects.toThrow('second')
  expect(stopped).toBe(true)
  await expect(
    share(
      'key',
      async () => undefined,
      () => undefined,
      AbortSignal.abort(new Error('late')),
    ),
  ).rejects.toThrow('late')
})
