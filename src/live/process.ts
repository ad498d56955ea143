// A command with pipes. All output that was written before the command exited is delivered before its exit is reported,
// even when another process still holds the pipes open.
import type { ChildProcess } from 'node:child_process'
import { constants } from 'node:os'
import type { Readable } from 'node:stream'
import { type OutputStream, stderrByte, stdoutByte } from '../model/output-stream.ts'

export interface ExecProcess {
  /** The pid of the process on the host; undefined when it could not be started or has exited. */
  readonly hostPid: number | undefined
  /** Returns false when too much input is buffered; `onDrain` is called when there is room again. */
  write(data: Buffer): boolean
  endInput(): void
  pause(): void
  resume(): void
}

export interface ProcessEvents {
  onOutput(stream: OutputStream, data: Buffer): void
  onDrain(): void
  /** Called once, as the last event. */
  onEnd(code: number): void
}

/** Input beyond this is not read from the client until the command has read some. */
export const maxBufferedBytes = 1024 * 1024

/** The exit code for a command that the platform could not start. */
const notStarted = 125

export function startWithPipes(child: ChildProcess, events: ProcessEvents): ExecProcess {
  const outputs = [child.stdout!, child.stderr!]
  const input = child.stdin!
  let paused = false
  let receivedBytes = 0
  let ended = false
  const receive = (stream: OutputStream) => (data: Buffer) => {
    receivedBytes += data.length
    events.onOutput(stream, data)
  }
  child.stdout!.on('data', receive(stdoutByte))
  child.stderr!.on('data', receive(stderrByte))
  for (const stream of [input, ...outputs]) stream.on('error', () => undefined) // the exit code is reported instead
  input.on('drain', events.onDrain)

  const end = (code: number) => {
    if (ended) return
    ended = true
    // Processes that the command left in the background must not block on a full pipe.
    for (const stream of outputs) discard(stream)
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
    const result = code ?? 128 + (signal ? constants.signals[signal] : 0)
    child.once('close', () => end(result))
    const pipes = { isPaused: () => paused, receivedBytes: () => receivedBytes, isClosed: () => ended }
    whenEmpty(pipes, () => end(result))
  })

  return {
    get hostPid() {
      return child.exitCode === null && child.signalCode === null ? child.pid : undefined
    },
    write(data) {
      if (ended || input.destroyed || input.writableEnded) return true
      input.write(data)
      return input.writableLength < maxBufferedBytes
    },
    endInput: () => input.end(),
    pause() {
      paused = true
      for (const stream of outputs) stream.pause()
    },
    resume() {
      paused = false
      for (const stream of outputs) stream.resume()
    },
  }
}

function discard(stream: Readable & { unref?(): void }): void {
  stream.removeAllListeners('data')
  stream.resume()
  stream.unref?.()
}

interface Pipes {
  isPaused(): boolean
  receivedBytes(): number
  isClosed(): boolean
}

/** Far more than pipes can hold. */
const maxPipeBytes = 1024 * 1024
const pausedPollMs = 5
/** The first turn may be the rest of the one in which the exit was reported, so one turn without data is not enough. */
const quietTurnsAtEnd = 3

/**
 * Calls back when the output that a command left in its pipes has been read. Each turn of the event loop reads from the
 * pipes, so they are empty after some turns without data. If more data comes than pipes can hold, a background process
 * is writing it, and waiting longer makes no sense.
 */
function whenEmpty(pipes: Pipes, done: () => void): void {
  const bytesAtExit = pipes.receivedBytes()
  let before = bytesAtExit
  let quietTurns = 0
  const look = () => {
    if (pipes.isClosed()) return
    const now = pipes.receivedBytes()
    quietTurns = pipes.isPaused() || now > before ? 0 : quietTurns + 1
    before = now
    if (quietTurns >= quietTurnsAtEnd || now - bytesAtExit > maxPipeBytes) return done()
    if (pipes.isPaused()) setTimeout(look, pausedPollMs)
    else setImmediate(look)
  }
  setImmediate(look)
}
