import fc from 'fast-check'
import { expect, test } from 'vitest'
import { parseSeals, renderHeader, renderSeal } from './seal.ts'

const place = { clusterId: 'abcdefghij123456', epoch: 2 }
const name = (n: number) => `0000000100000000${n.toString(16).toUpperCase().padStart(8, '0')}`
const digest = (n: number) => n.toString(16).padStart(64, 'a')
const seal = (n: number) => ({ bytes: 16_777_216, sha256: digest(n) })
const write = (count: number) =>
  renderHeader(place) + Array.from({ length: count }, (_, n) => renderSeal(name(n), seal(n))).join('')

test('seals are read as they were written, of segments and of histories', () => {
  const text = write(3) + renderSeal('00000002.history', { bytes: 42, sha256: digest(9) })
  expect([...parseSeals(text, place).files]).toEqual([
    [name(0), seal(0)],
    [name(1), seal(1)],
    [name(2), seal(2)],
    ['00000002.history', { bytes: 42, sha256: digest(9) }],
  ])
})

test('seals of another cluster or epoch are refused by name', () => {
  expect(() => parseSeals(write(1), { ...place, clusterId: 'zzzzzzzzzz123456' })).toThrow('abcdefghij123456')
  expect(() => parseSeals(write(1), { ...place, epoch: 1 })).toThrow('epoch 2')
})

test('after a torn line, the next one is read', () => {
  const text = write(2).slice(0, -20) + renderSeal(name(2), seal(2))
  expect([...parseSeals(text, place).files.keys()]).toEqual([name(0), name(2)])
})

test('a changed line never yields another seal', () => {
  const text = Buffer.from(write(4))
  const start = renderHeader(place).length
  fc.assert(
    fc.property(fc.integer({ min: start, max: text.length - 1 }), fc.integer({ min: 0, max: 7 }), (at, bit) => {
      const changed = Buffer.from(text)
      changed[at]! ^= 1 << bit
      for (const [file, found] of parseSeals(changed.toString('latin1'), place).files)
        expect(found).toEqual(seal(Number.parseInt(file.slice(16), 16)))
    }),
  )
})

test('garbage has no seals', () => {
  fc.assert(fc.property(fc.string(), (garbage) => void expect(parseSeals(garbage, place).files.size).toBe(0)))
})
