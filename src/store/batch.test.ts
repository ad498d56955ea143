import { expect, test } from 'vitest'
import { byPosition, openBatching } from './batch.ts'

test('items that arrive while a batch runs are answered by one call', async () => {
  const batches: number[][] = []
  const batch = openBatching('connection')
  async function double(_: string, items: number[]): Promise<number[]> {
    batches.push(items)
    await Promise.resolve()
    return items.map((item) => item * 2)
  }
  expect(await Promise.all([1, 2, 3].map((item) => batch(double, item)))).toEqual([2, 4, 6])
  expect(batches).toEqual([[1], [2, 3]])
})

test('a failed batch rejects its own items and not the next ones', async () => {
  const batch = openBatching('connection')
  async function failOnOne(_: string, items: number[]): Promise<number[]> {
    if (items.includes(1)) throw new Error('failed')
    return items
  }
  const results = await Promise.allSettled([1, 2].map((item) => batch(failOnOne, item)))
  expect(results.map(({ status }) => status)).toEqual(['rejected', 'fulfilled'])
})

test('rows are assigned to items by position', () => {
  const second = { position: 2, name: 'b' }
  expect(byPosition(['a', 'b', 'c'], [second])).toEqual([undefined, second, undefined])
})
