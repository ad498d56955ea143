// Streams an exec session as an HTTP response. Frames have no length field: clients treat each chunk they read as one
// frame, so a frame must be read before the next one arrives. Therefore each frame is a separate write, with a pause
// before it.
import type { ServerResponse } from 'node:http'
import type { Readable } from 'node:stream'
import { setTimeout as pause } from 'node:timers/promises'
import type { ExecSession } from '../../live/sandbox/exec-session.ts'
import type { OutputStream } from '../../model/output-stream.ts'
import { exitFrame, frame } from '../../model/sandbox/exec.ts'

/** Long enough for clients to read a frame, even on a busy machine. */
const pauseMs = 10
/** Larger frames would be split on the network. */
const maxFrameBytes = 32 * 1024

/** Sends all output of the session; a client that disconnects ends it. */
export async function streamSession(
  out: ServerResponse,
  disconnected: AbortSignal,
  session: ExecSession,
  input: Readable | undefined,
): Promise<void> {
  const queue = new FrameQueue()
  const wake = new Signal()
  const drained = new Signal()
  const delivered = Promise.withResolvers<void>()
  const detach = session.attach({
    backlogBytes: () => queue.bytes,
    output(stream, data) {
      queue.add(stream, data)
      wake.notify()
    },
    ended: () => wake.notify(),
    drained: () => drained.notify(),
    drop: () => out.destroy(),
    delivered: delivered.promise,
  })
  disconnected.addEventListener('abort', () => {
    detach()
    session.stop(15)
    wake.notify()
    delivered.resolve()
  })
  if (input) feed(session, input, drained).catch(() => undefined) // reading the body fails when the client disconnects
  out.socket?.setNoDelay(true)
  out.flushHeaders()
  while (!disconnected.aborted) {
    await pause(pauseMs)
    const next = queue.take()
    if (next) await write(out, next)
    else if (session.exitCode === undefined) await wake.wait()
    else break
    session.balance()
  }
  if (!disconnected.aborted) await write(out, exitFrame(session.exitCode!))
  delivered.resolve()
}

async function feed(session: ExecSession, input: Readable, drained: Signal): Promise<void> {
  for await (const data of input) {
    if (!session.input(data as Buffer)) await drained.wait()
    if (session.exitCode !== undefined) return void input.resume()
  }
  session.endInput()
}

function write(out: ServerResponse, data: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    out.write(data, (error) => (error ? reject(error) : resolve()))
  })
}

/** Combines the pending output of a stream into frames; the streams take turns. */
class FrameQueue {
  bytes = 0
  readonly #pending = new Map<OutputStream, Buffer[]>()

  add(stream: OutputStream, data: Buffer): void {
    this.bytes += data.length
    const parts = this.#pending.get(stream)
    if (parts) parts.push(data)
    else this.#pending.set(stream, [data])
  }

  take(): Buffer | undefined {
    for (const [stream, parts] of this.#pending) {
      const all = parts.length === 1 ? parts[0]! : Buffer.concat(parts)
      const part = all.subarray(0, maxFrameBytes - 1)
      this.bytes -= part.length
      this.#pending.delete(stream)
      if (part.length < all.length) this.#pending.set(stream, [all.subarray(part.length)])
      return frame(stream, part)
    }
    return undefined
  }
}

/** Wakes one waiting function; a notification that came first is not lost. */
class Signal {
  #isSet = false
  #wake: (() => void) | undefined

  notify(): void {
    this.#isSet = true
    this.#wake?.()
  }

  async wait(): Promise<void> {
    if (!this.#isSet) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve
      })
    }
    this.#isSet = false
    this.#wake = undefined
  }
}
