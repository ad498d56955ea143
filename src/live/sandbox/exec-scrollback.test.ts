import fc from 'fast-check'
import { expect, test } from 'vitest'
import { type OutputStream, stderrByte, stdoutByte } from '../../model/sandbox/exec.ts'
import { Scrollback } from './exec-scrollback.ts'

const piece = fc.record({
  stream: fc.constantFrom<OutputStream>(stdoutByte, stderrByte),
  data: fc.uint8Array({ maxLength: 40 }).map((bytes) => Buffer.from(bytes)),
})

test('the newest bytes are kept, each with its stream, and no more than wanted', () => {
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 50 }), fc.integer({ min: 1, max: 100 }), (pieces, most) => {
      const scrollback = new Scrollback(most)
      for (const { stream, data } of pieces) scrollback.add(stream, data)
      const tagged = (list: { stream: number; data: Buffer }[]) =>
        list.flatMap(({ stream, data }) => [...data].map((byte) => [stream, byte]))
      expect(tagged(scrollback.read())).toEqual(tagged(pieces).slice(-most))
    }),
  )
})

test('many small pieces of one stream become one', () => {
  const scrollback = new Scrollback(100_000)
  for (let i = 0; i < 5000; i++) scrollback.add(stdoutByte, Buffer.from('x'))
  expect(scrollback.read()).toEqual([{ stream: stdoutByte, data: Buffer.from('x'.repeat(5000)) }])
})
