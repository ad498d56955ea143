// A session as the answer to a request. Frames have no length: clients take each piece that arrives as one frame, so each
// must be read before the next arrives. Headers first, then one write for each frame, awaited, and a pause before each.
import type { ServerResponse } from 'node:http'
import type { Readable } from 'node:stream'
import { setTimeout as pause } from 'node:timers/promises'
import type { ExecSession } from '../../live/sandbox/exec-session.ts'
import type { OutputStream } from '../../model/output-stream.ts'
import { exitFrame, frame } from '../../model/sandbox/exec.ts'

/** Most clients have read a frame by then, also on a busy machine. */
const pauseMs = 10
/** Larger ones would be cut on their way. */
const mostFrameBytes = 32 * 1024

/** Writes everything the session writes; a client that goes ends it. */
export async function streamSession(
  out: ServerResponse,
  gone: AbortSignal,
  session: ExecSession,
  input: Readable | undefined,
): Promise<void> {
  const queue = new FrameQueue()
  const wake = new Signal()
  const drained = new Signal()
  const detach = session.attach({
    backlogBytes: () => queue.bytes,
    output(stream, data) {
      queue.add(stream, data)
      wake.give()
    },
    ended: () => wake.give(),
    drained: () => drained.give(),
    drop: () => out.destroy(),
  })
  gone.addEventListener('abort', () => {
    detach()
    session.stop(15)
    wake.give()
  })
  if (input) feed(session, input, drained).catch(() => undefined) // a broken body is a client that has gone
  out.socket?.setNoDelay(true)
  out.flushHeaders()
  while (!gone.aborted) {
    await pause(pauseMs)
    const next = queue.take()
    if (next) await write(out, next)
    else if (session.exitCode === undefined) await wake.taken()
    else break
    session.balance()
  }
  if (!gone.aborted) await write(out, exitFrame(session.exitCode!))
}

async function feed(session: ExecSession, input: Readable, drained: Signal): Promise<void> {
  for await (const data of input) {
    if (!session.input(data as Buffer)) await drained.taken()
    if (session.exitCode !== undefined) return void input.resume()
  }
  session.endInput()
}

function write(out: ServerResponse, data: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    out.write(data, (error) => (error ? reject(error) : resolve()))
  })
}

/** What waits of one stream leaves together, as much as fits into a frame; the streams take turns. */
class FrameQueue {
  bytes = 0
  readonly #waiting = new Map<OutputStream, Buffer[]>()

  add(stream: OutputStream, data: Buffer): void {
    this.bytes += data.length
    const parts = this.#waiting.get(stream)
    if (parts) parts.push(data)
    else this.#waiting.set(stream, [data])
  }

  take(): Buffer | undefined {
    for (const [stream, parts] of this.#waiting) {
      const all = parts.length === 1 ? parts[0]! : Buffer.concat(parts)
      const part = all.subarray(0, mostFrameBytes - 1)
      this.bytes -= part.length
      this.#waiting.delete(stream)
      if (part.length < all.length) this.#waiting.set(stream, [all.subarray(part.length)])
      return frame(stream, part)
    }
    return undefined
  }
}

/** Given any number of times, taken once; also when it was given before. */
class Signal {
  #given = false
  #wake: (() => void) | undefined

  give(): void {
    this.#given = true
    this.#wake?.()
  }

  async taken(): Promise<void> {
    if (!this.#given) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve
      })
    }
    this.#given = false
    this.#wake = undefined
  }
}
