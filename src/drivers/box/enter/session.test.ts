import type { Socket } from 'node:net'
import { type Duplex, duplexPair } from 'node:stream'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { SessionConnection } from './session.ts'

const turn = () => new Promise((resolve) => setImmediate(resolve))

function frame(kind: string, data: string | Buffer = ''): Buffer {
  const body = Buffer.from(data)
  const header = Buffer.alloc(5)
  header.write(kind)
  header.writeUInt32BE(body.length, 1)
  return Buffer.concat([header, body])
}

const greeting = (unread = 0) => frame('h', `4711\0/bin/sh\0${80}\0${24}\0${1000}\0${unread}\0facts`)

function open() {
  const [ours, theirs] = duplexPair() as [Duplex, Duplex]
  const sent: Buffer[] = []
  theirs.on('data', (data) => sent.push(data))
  const connection = new SessionConnection(ours as Socket, '/nonexistent/socket')
  const seen = { out: '', err: '', codes: [] as number[] }
  const events = {
    onOutput: (stream: 1 | 2, data: Buffer) => {
      if (stream === 1) seen.out += data
      else seen.err += data
    },
    onDrain: () => undefined,
    onEnd: (code: number) => seen.codes.push(code),
  }
  return { connection, theirs, sent, seen, events }
}

test('delivers frames however they are cut, and the end last', async () => {
  const all = Buffer.concat([
    greeting(),
    frame('r'),
    frame('1', 'one '),
    frame('2', 'err'),
    frame('1', 'two'),
    frame('x', '\x07'),
  ])
  await fc.assert(
    fc.asyncProperty(fc.array(fc.integer({ min: 1, max: all.length - 1 })), async (cuts) => {
      const { connection, theirs, seen, events } = open()
      connection.follow(events)
      const at = [0, ...cuts.sort((a, b) => a - b), all.length]
      for (const [nth, end] of at.slice(1).entries()) theirs.write(all.subarray(at[nth], end))
      await turn()
      expect(seen).toEqual({ out: 'one two', err: 'err', codes: [7] })
      connection.leave()
    }),
    { numRuns: 20 },
  )
})

test('keeps the history and the exit code until it is followed', async () => {
  const { connection, theirs, seen, events } = open()
  theirs.write(Buffer.concat([greeting(), frame('1', 'before'), frame('x', '\x03'), frame('r')]))
  expect(await connection.greeting).toEqual({
    ...{ pid: 4711, path: '/bin/sh', cols: 80, rows: 24, lastOutputAt: 1000, facts: 'facts' },
    history: [{ stream: 1, data: Buffer.from('before') }],
  })
  connection.follow(events)
  await turn()
  expect(seen).toEqual({ out: '', err: '', codes: [3] })
})

test('sends no more input than the process asked for', async () => {
  const { connection, theirs, sent, events } = open()
  connection.follow(events)
  const bytes = () => Buffer.concat(sent).length
  expect(connection.write(Buffer.alloc(2_000_000))).toBe(false)
  connection.endInput()
  await turn()
  expect(bytes()).toBeLessThan(257 * 1024)
  for (let credit = 0; credit < 20; credit += 1) {
    const size = Buffer.alloc(4)
    size.writeUInt32BE(100_000)
    theirs.write(frame('c', size))
    await turn()
  }
  expect(bytes()).toBeGreaterThan(2_000_000)
  expect(Buffer.concat(sent).subarray(-5)).toEqual(frame('e'))
})

test.each([
  ['an unknown frame', frame('?')],
  ['a frame that is too long', Buffer.from('1\xff\xff\xff\xff', 'latin1')],
  ['a greeting without numbers', frame('h', 'x\0y\0z\0\0\0\0')],
  ['a greeting with too few words', frame('h', '1\0/bin/sh\0')],
  ['a credit of the wrong length', frame('c', 'x')],
  ['an end without a code', frame('x')],
])('%s ends the connection as if the process had been killed', async (_name, bytes) => {
  const { connection, theirs, seen, events } = open()
  connection.follow(events)
  theirs.write(bytes)
  await turn()
  await turn()
  expect(seen.codes).toEqual([137])
  expect(connection.write(Buffer.from('more'))).toBe(true)
})
