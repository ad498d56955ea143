import fc from 'fast-check'
import { expect, test } from 'vitest'
import { addMark, type EndRecord, parseEnd, renderEnd } from './end.ts'

const place = { clusterId: 'abcdefghij123456', epoch: 2 }
const mark = (bytes: number) => ({ bytes, sha256: 'ab'.repeat(32) })
const record: EndRecord = {
  ...place,
  timeline: 3,
  lsn: 0x3000100n,
  at: 1_793_613_600_000_001n,
  marks: [mark(8), mark(256)],
}

test('a record is read as it was written', () => {
  expect(parseEnd(renderEnd(record), place)).toEqual(record)
})

test('a record of another cluster or epoch is refused by name', () => {
  const other = { clusterId: 'zzzzzzzzzz123456', epoch: 2 }
  expect(() => parseEnd(renderEnd(record), other)).toThrow('it belongs to epoch 2 of cluster abcdefghij123456')
  expect(() => parseEnd(renderEnd(record), { ...place, epoch: 1 })).toThrow('it belongs to epoch 2')
})

test('any changed byte, truncation or garbage is refused', () => {
  const text = Buffer.from(renderEnd(record))
  fc.assert(
    fc.property(fc.nat(text.length - 2), fc.integer({ min: 0, max: 7 }), (at, bit) => {
      const changed = Buffer.from(text)
      changed[at]! ^= 1 << bit
      expect(() => parseEnd(changed.toString('latin1'), place)).toThrow()
      expect(() => parseEnd(text.subarray(0, at).toString(), place)).toThrow()
    }),
  )
  fc.assert(fc.property(fc.string(), (garbage) => void expect(() => parseEnd(garbage, place)).toThrow()))
})

test('marks are thinned out, and the newest is kept', () => {
  let marks = [mark(1)]
  for (let bytes = 2; bytes <= 5000; bytes++) marks = addMark(marks, mark(bytes))
  expect(marks.length).toBeLessThanOrEqual(64)
  expect(marks.at(-1)).toEqual(mark(5000))
  expect(marks.map(({ bytes }) => bytes)).toEqual(marks.map(({ bytes }) => bytes).toSorted((a, b) => a - b))
})
