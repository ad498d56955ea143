import { expect, test } from 'vitest'
import type { Home } from '../host/home.ts'
import { ensureFirewall } from './firewall.ts'

const home = { path: '/home/of/a/test', number: 7, uidStart: 100_000 } as Home

test('rules that cannot be loaded are a problem, and are loaded again later', async () => {
  const loaded: string[] = []
  const fail = async () => {
    throw new Error('nft: Operation not supported')
  }
  const apply = async (rules: string) => void loaded.push(rules)
  expect(await ensureFirewall(home, fail, 0)).toMatch(/not in force: nft: Operation not supported/)
  expect(await ensureFirewall(home, apply, 1_000)).toContain('not in force')
  expect(loaded).toEqual([])
  expect(await ensureFirewall(home, apply, 61_000)).toBeUndefined()
  expect(loaded[0]).toContain('table inet berth-clusters-7')
  expect(await ensureFirewall(home, fail, 999_000)).toBeUndefined()
  expect(loaded).toHaveLength(1)
})
