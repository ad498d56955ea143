import { EventEmitter } from 'node:events'
import type { ServerHttp2Session, ServerHttp2Stream } from 'node:http2'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { UploadWindows } from './upload-windows.ts'

const mb = 1_048_576

class FakeSession extends EventEmitter {
  window = 4 * mb
  closed = false
  destroyed = false
  setLocalWindowSize(): void {}
  settings({ initialWindowSize }: { initialWindowSize: number }): void {
    this.window = initialWindowSize
  }
  destroy(): void {
    this.destroyed = true
    this.emit('close')
  }
}

class FakeStream extends EventEmitter {
  destroyed = false
  readableLength = 0
  end(): void {
    this.destroyed = true
    this.emit('close')
  }
}

let windows: UploadWindows

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] })
  windows = new UploadWindows()
})

afterEach(() => {
  vi.useRealTimers()
})

function open(): FakeSession {
  const session = new FakeSession()
  windows.open(session as unknown as ServerHttp2Session)
  return session
}

function upload(session: FakeSession): FakeStream {
  const stream = new FakeStream()
  windows.add(session as unknown as ServerHttp2Session, stream as unknown as ServerHttp2Stream)
  return stream
}

test.each([
  [1, 4 * mb],
  [2, 4 * mb],
  [3, 2 * mb],
  [9, mb / 2],
  [100, 65_536],
])('%i uploads of a connection have windows of %i bytes each', (count, bytes) => {
  const session = open()
  for (let n = 0; n < count; n++) upload(session)
  expect(session.window).toBe(bytes)
})

test('windows grow again a second after uploads have ended, and no timer stays', () => {
  const session = open()
  const streams = Array.from({ length: 40 }, () => upload(session))
  expect(session.window).toBe(mb / 8)
  for (const stream of streams.slice(1)) stream.end()
  vi.advanceTimersByTime(900)
  expect(session.window).toBe(mb / 8)
  vi.advanceTimersByTime(300)
  expect(session.window).toBe(4 * mb)
  streams[0]!.end()
  vi.advanceTimersByTime(200)
  expect(vi.getTimerCount()).toBe(0)
})

test('the windows of all connections are bounded together', () => {
  const sessions = Array.from({ length: 512 }, open)
  for (const session of sessions) upload(session)
  vi.advanceTimersByTime(200)
  expect(Math.max(...sessions.map(({ window }) => window))).toBe(mb / 2)
})

test('a client that sends more than its windows allow loses its connection', () => {
  const [greedy, other] = [open(), open()]
  const streams = Array.from({ length: 10 }, () => upload(greedy))
  upload(other).readableLength = 4 * mb
  for (const stream of streams) stream.readableLength = 3 * mb
  vi.advanceTimersByTime(100)
  expect([greedy.destroyed, other.destroyed]).toEqual([false, false])
  for (const stream of streams) stream.readableLength = 4 * mb
  vi.advanceTimersByTime(100)
  expect([greedy.destroyed, other.destroyed]).toEqual([true, false])
})

test('when all uploads together take too much memory, the largest connections are closed', () => {
  const sessions = Array.from({ length: 40 }, open)
  for (const [n, session] of sessions.entries()) upload(session).readableLength = (n < 10 ? 20 : 12) * mb
  vi.advanceTimersByTime(100)
  expect(sessions.filter(({ destroyed }) => destroyed).length).toBe(3)
  expect(sessions.slice(10).some(({ destroyed }) => destroyed)).toBe(false)
})
