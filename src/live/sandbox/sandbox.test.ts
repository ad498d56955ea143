import { expect, test } from 'vitest'
import type { LiveContext } from '../context.ts'
import { isolationOf } from './sandbox.ts'

test('asks for the isolation once, and again after a failure', async () => {
  let asked = 0
  const boxes = {
    isolation: async () => {
      asked++
      if (asked === 1) throw new Error('no answer')
      return { kind: 'none', gap: 'nothing is isolated' }
    },
  }
  const ctx = { boxes } as unknown as LiveContext
  await expect(isolationOf(ctx)).rejects.toThrow('no answer')
  for (let i = 0; i < 3; i++) expect(await isolationOf(ctx)).toEqual({ kind: 'none', gap: 'nothing is isolated' })
  expect(asked).toBe(2)
})
