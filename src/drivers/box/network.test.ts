import { expect, test } from 'vitest'
import { boxNetwork, networkTable } from './network.ts'

test('gives each slot of each home four addresses of its own', () => {
  expect(boxNetwork({ number: 0 }, 1)).toEqual({
    link: 'bx0-1',
    hostAddress: '100.64.0.5',
    address: '100.64.0.6',
    hostMac: '02:be:00:00:01:01',
    mac: '02:be:00:00:01:02',
  })
  expect(boxNetwork({ number: 62 }, 1023)).toMatchObject({ hostAddress: '100.67.239.253', address: '100.67.239.254' })
  const seen = [0, 1, 62].flatMap((number) => [1, 255, 256, 1023].map((slot) => boxNetwork({ number }, slot)))
  for (const key of ['link', 'address', 'mac'] as const) expect(new Set(seen.map((one) => one[key])).size).toBe(12)
})

test('has interface names that the kernel accepts, and no prefix that matches another home', () => {
  expect(boxNetwork({ number: 62 }, 1023).link.length).toBeLessThanOrEqual(15)
  expect(boxNetwork({ number: 11 }, 1).link.startsWith(boxNetwork({ number: 1 }, 1).link.slice(0, -1))).toBe(false)
  expect(networkTable({ number: 3 })).toBe('berth-3')
})

test.each([-1, 1024, 1.5, Number.NaN])('rejects the slot %s', (slot) => {
  expect(() => boxNetwork({ number: 0 }, slot)).toThrow('not a box slot')
})
