import fc from 'fast-check'
import { expect, test } from 'vitest'
import { type OutputStream, stderrByte, stdoutByte } from '../../model/output-stream.ts'
import { Scrollback } from './exec-scrollback.ts'

const piece = fc.record({
  stream: fc.constantFrom<OutputStream>(stdoutByte, stderrByte),
  data: fc.uint8Array({ maxLength: 40 }).map((bytes) => Buffer.from(bytes)),
})

test('keeps the newest bytes with their stream, up to the maximum', () => {
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 50 }), fc.integer({ min: 1, max: 100 }), (pieces, max) => {
      const scrollback = new Scrollback(max)
      for (const { stream, data } of pieces) scrollback.add(stream, data)
      const tagged = (list: { stream: number; data: Buffer }[]) =>
        list.flatMap(({ stream, data }) => [...data].map((byte) => [stream, byte]))
      expect(tagged(scrollback.read())).toEqual(tagged(pieces).slice(-max))
    }),
  )
})

test('joins many small pieces of one stream', () => {
  const scrollback = new Scrollback(100_000)
  for (let i = 0; i < 5000; i++) scrollback.add(stdoutByte, Buffer.from('x'))
  expect(scrollback.read()).toEqual([{ stream: stdoutByte, data: Buffer.from('x'.repeat(5000)) }])
})
