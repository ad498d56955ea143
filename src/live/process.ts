// A command and its streams, with pipes or on a terminal. What both have in common: everything that was written before
// the command ended is handed over before its end is told, also when somebody else still holds the other end.
import type { ChildProcess } from 'node:child_process'
import { writeSync } from 'node:fs'
import { constants } from 'node:os'
import type { Readable } from 'node:stream'
import type { ReadStream } from 'node:tty'
import type * as Pty from '@lydell/node-pty'
import type { BoxDriver } from '../drivers/box/driver.ts'
import { killProcess } from '../drivers/host/process-list.ts'
import { type OutputStream, stderrByte, stdoutByte } from '../model/sandbox/exec.ts'

export interface ExecProcess {
  /** Of the program outside that stands for the command; undefined when it could not be started. */
  readonly pid: number | undefined
  /** False once more waits to be read by the command than it should; `onDrain` says when it goes on. */
  write(data: Buffer): boolean
  endInput(): void
  resize(cols: number, rows: number): void
  signal(signal: number): void
  pause(): void
  resume(): void
}

export interface ProcessEvents {
  onOutput(stream: OutputStream, data: Buffer): void
  onDrain(): void
  /** Called once, last. */
  onEnd(code: number): void
}

/** A client that sends faster than the command reads is held back beyond it. */
const mostWaitingBytes = 1024 * 1024

/** Our own part of it failed, before the command could run. */
const notStarted = 125

export function startWithPipes(child: ChildProcess, events: ProcessEvents): ExecProcess {
  const streams = [child.stdout!, child.stderr!]
  const input = child.stdin!
  let paused = false
  let heard = 0
  let ended = false
  const take = (stream: OutputStream) => (data: Buffer) => {
    heard += data.length
    events.onOutput(stream, data)
  }
  child.stdout!.on('data', take(stdoutByte))
  child.stderr!.on('data', take(stderrByte))
  for (const stream of [input, ...streams]) stream.on('error', () => undefined) // it ended without reading or writing all
  input.on('drain', events.onDrain)

  const end = (code: number) => {
    if (ended) return
    ended = true
    // What it left running in the background may go on writing, to nobody.
    for (const stream of streams) discard(stream)
    input.destroy()
    events.onDrain()
    events.onEnd(code)
  }
  child.once('error', (error) => {
    if (child.pid !== undefined) return
    events.onOutput(stderrByte, Buffer.from(`the command could not be started: ${error.message}\n`))
    end(notStarted)
  })
  child.once('exit', (code, signal) => {
    const result = codeOf(code, signal)
    child.once('close', () => end(result))
    whenRead({ isPaused: () => paused, heard: () => heard, isOver: () => ended }, () => end(result))
  })

  return {
    pid: child.pid,
    write(data) {
      if (ended || input.destroyed || input.writableEnded) return true
      input.write(data)
      return input.writableLength < mostWaitingBytes
    },
    endInput: () => input.end(),
    resize: () => undefined,
    // Not by the child's own way to do it, which refuses those that have no name.
    signal(signal) {
      if (child.pid !== undefined && child.exitCode === null && child.signalCode === null)
        killProcess(child.pid, signal)
    },
    pause() {
      paused = true
      for (const stream of streams) stream.pause()
    },
    resume() {
      paused = false
      for (const stream of streams) stream.resume()
    },
  }
}

function codeOf(code: number | null, signal: NodeJS.Signals | null): number {
  return code ?? 128 + (signal ? constants.signals[signal] : 0)
}

function discard(stream: Readable & { unref?(): void }): void {
  stream.removeAllListeners('data')
  stream.resume()
  stream.unref?.()
}

interface Reading {
  isPaused(): boolean
  /** Bytes so far. */
  heard(): number
  isOver(): boolean
}

/** What a pipe can hold is far less. */
const mostInPipesBytes = 1024 * 1024

/**
 * Once the command has ended, what it wrote lies in the pipes, and each turn of the event loop looks into them. When
 * nothing came in whole turns, nothing is left; what comes after more than they can hold was written by somebody else.
 */
function whenRead(reading: Reading, done: () => void): void {
  const atEnd = reading.heard()
  let before = atEnd
  let quietTurns = 0
  const look = () => {
    if (reading.isOver()) return
    const now = reading.heard()
    quietTurns = reading.isPaused() || now > before ? 0 : quietTurns + 1
    before = now
    // The first turn may be the rest of the one in which the end was told.
    if (quietTurns >= 3 || now - atEnd > mostInPipesBytes) return done()
    if (reading.isPaused()) setTimeout(look, 5)
    else setImmediate(look)
  }
  setImmediate(look)
}

let pty: typeof Pty | undefined

/** Loaded with the first terminal: most processes never need one. */
export async function loadTerminals(): Promise<void> {
  pty ??= await import('@lydell/node-pty')
}

/** How long a terminal that something in the background holds is silent before it counts as read. */
const quietMs = 50

/** After `loadTerminals`. */
export function startOnTerminal(
  entry: ReturnType<BoxDriver['entry']>,
  size: { cols: number; rows: number },
  events: ProcessEvents,
): ExecProcess {
  // `encoding: null` hands bytes on as they are; their type does not know it.
  const terminal = pty!.spawn(entry.program, entry.args, { ...size, cwd: '/', env: entry.env, encoding: null })
  const stream = (terminal as unknown as { _socket: ReadStream })._socket
  const { fd } = terminal as unknown as { fd: number }
  let lastHeard = 0
  let ended = false
  const input = openInput(fd, () => ended || stream.destroyed, events.onDrain)
  stream.on('data', (data: Buffer) => {
    lastHeard = performance.now()
    events.onOutput(stdoutByte, data)
  })

  // Some time after the end of the process the library closes the terminal, read or not.
  const close = stream.destroy.bind(stream)
  stream.destroy = (error) => {
    if (error) return close(error)
    const unread = () => stream.isPaused() || performance.now() - lastHeard < quietMs
    const look = () => void (unread() && !stream.destroyed ? setTimeout(look, quietMs) : close())
    look()
    return stream
  }
  terminal.onExit(({ exitCode, signal }) => {
    ended = true
    events.onDrain()
    events.onEnd(signal ? 128 + signal : exitCode)
  })

  return {
    pid: terminal.pid,
    write: input.write,
    // The end of input is a key of a terminal.
    endInput: () => undefined,
    resize(cols, rows) {
      if (ended || stream.destroyed) return
      try {
        terminal.resize(cols, rows)
      } catch {
        // It ends in this moment.
      }
    },
    signal(signal) {
      if (!ended) killProcess(terminal.pid, signal)
    },
    pause: () => stream.pause(),
    resume: () => stream.resume(),
  }
}

const pieceBytes = 4096
const retryMs = { first: 2, most: 100 }

/**
 * What is typed, into a terminal that may not be read. The stream of a terminal would try without end, and nobody else
 * would get an answer meanwhile.
 */
function openInput(fd: number, isOver: () => boolean, onDrain: () => void) {
  let waiting: Buffer = Buffer.alloc(0)
  let retrying: NodeJS.Timeout | undefined
  let delay = retryMs.first

  function pump(): void {
    retrying = undefined
    while (waiting.length > 0 && !isOver()) {
      const written = tryWrite(fd, waiting.subarray(0, pieceBytes))
      if (written === 0) {
        retrying = setTimeout(pump, delay)
        delay = Math.min(delay * 2, retryMs.most)
        return
      }
      waiting = waiting.subarray(written)
      delay = retryMs.first
    }
    waiting = Buffer.alloc(0)
    onDrain()
  }

  return {
    write(data: Buffer): boolean {
      if (isOver()) return true
      waiting = Buffer.concat([waiting, data])
      if (!retrying) pump()
      return waiting.length < mostWaitingBytes
    },
  }
}

/** How many bytes were taken: none while it is full, all of them when it is gone. */
function tryWrite(fd: number, data: Buffer): number {
  try {
    return writeSync(fd, data)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EAGAIN' ? 0 : data.length
  }
}
