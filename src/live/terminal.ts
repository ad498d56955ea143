// A command on a pseudo-terminal. As with pipes, all of its output is delivered before its exit is reported.
import { writeSync } from 'node:fs'
import type { ReadStream } from 'node:tty'
import type * as Pty from '@lydell/node-pty'
import type { BoxEntry } from '../drivers/box/driver.ts'
import { stdoutByte } from '../model/output-stream.ts'
import { type ExecProcess, maxBufferedBytes, type ProcessEvents } from './process.ts'

let pty: typeof Pty | undefined

/** Loads the native module with the first terminal, because most processes never need one. */
export async function loadTerminals(): Promise<void> {
  pty ??= await import('@lydell/node-pty')
}

/** A terminal that a background process holds open counts as read after this silence. */
const quietMs = 50

/** To be called after `loadTerminals`. */
export function startOnTerminal(
  entry: BoxEntry,
  size: { cols: number; rows: number },
  events: ProcessEvents,
): ExecProcess {
  // The type declarations lack `encoding: null`, which delivers bytes unchanged.
  const terminal = pty!.spawn(entry.program, entry.args, { ...size, cwd: '/', env: entry.env, encoding: null })
  const stream = (terminal as unknown as { _socket: ReadStream })._socket
  const { fd } = terminal as unknown as { fd: number }
  let lastReceivedMs = 0
  let ended = false
  const input = openInput(fd, () => ended || stream.destroyed, events.onDrain)
  stream.on('data', (data: Buffer) => {
    lastReceivedMs = performance.now()
    events.onOutput(stdoutByte, data)
  })
  destroyWhenRead(stream, () => performance.now() - lastReceivedMs < quietMs)
  terminal.onExit(({ exitCode, signal }) => {
    ended = true
    events.onDrain()
    events.onEnd(signal ? 128 + signal : exitCode)
  })

  return {
    get pid() {
      return ended ? undefined : terminal.pid
    },
    write: input.write,
    // On a terminal, the end of input is a key (^D).
    endInput: () => undefined,
    resize(cols, rows) {
      if (ended || stream.destroyed) return
      try {
        terminal.resize(cols, rows)
      } catch {
        // The terminal was closed in the meantime.
      }
    },
    pause: () => stream.pause(),
    resume: () => stream.resume(),
  }
}

/** node-pty destroys the stream some time after the exit of the process; this postpones it until all data is read. */
function destroyWhenRead(stream: ReadStream, isReceiving: () => boolean): void {
  const destroy = stream.destroy.bind(stream)
  stream.destroy = (error) => {
    if (error) return destroy(error)
    const hasUnread = () => stream.isPaused() || isReceiving()
    const look = () => void (hasUnread() && !stream.destroyed ? setTimeout(look, quietMs) : destroy())
    look()
    return stream
  }
}

const pieceBytes = 4096
const retryMs = { first: 2, max: 100 }

/**
 * Writes input to a terminal whose command may not read it. The stream of node-pty would retry in a busy loop and block
 * all other work of this process.
 */
function openInput(fd: number, isClosed: () => boolean, onDrain: () => void) {
  let buffered: Buffer = Buffer.alloc(0)
  let retry: NodeJS.Timeout | undefined
  let delayMs = retryMs.first

  function pump(): void {
    retry = undefined
    while (buffered.length > 0 && !isClosed()) {
      const written = tryWrite(fd, buffered.subarray(0, pieceBytes))
      if (written === 0) {
        retry = setTimeout(pump, delayMs)
        delayMs = Math.min(delayMs * 2, retryMs.max)
        return
      }
      buffered = buffered.subarray(written)
      delayMs = retryMs.first
    }
    buffered = Buffer.alloc(0)
    onDrain()
  }

  return {
    write(data: Buffer): boolean {
      if (isClosed()) return true
      buffered = Buffer.concat([buffered, data])
      if (!retry) pump()
      return buffered.length < maxBufferedBytes
    },
  }
}

/** Returns the number of bytes written: 0 when the terminal is full, all of them when it is gone. */
function tryWrite(fd: number, data: Buffer): number {
  try {
    return writeSync(fd, data)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EAGAIN' ? 0 : data.length
  }
}
