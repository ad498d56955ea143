import type { BoxSession, FoundSession, SessionEvents } from '../../drivers/box/driver.ts'
import type { OutputStream } from '../../model/output-stream.ts'
import { OutputRate } from './exec-rate.ts'
import { Scrollback } from './exec-scrollback.ts'

/** A client of a session: a WebSocket, or the response to an HTTP request. */
export interface ExecReader {
  /** Bytes that were passed to it and not sent yet. It calls `session.balance()` when they have been sent. */
  backlogBytes(): number
  output(stream: OutputStream, data: Buffer): void
  ended(code: number): void
  /** The command can take input again. */
  drained(): void
  /** The reader is too far behind others and gets no more output. */
  drop(): void
  /** For readers that send with delays: resolves when the client has been sent everything, or has disconnected. */
  delivered?: Promise<void>
}

export interface SessionFacts {
  id: string
  /** The sandbox or machine. */
  boxId: string
  /** The command as the caller sent it. */
  argv: [string, ...string[]]
  workdir: string
  tty: boolean
  /** False when the command gets no input. */
  stdin: boolean
  cols: number
  rows: number
  createdAt: Date
}

/** What happened before this process found the session. */
export interface SessionPast {
  history: FoundSession['history']
  lastOutputAt: number
}

export interface SessionOptions {
  start(events: SessionEvents): BoxSession
  /** Called before readers are told about the end. */
  onEnd(): void
  past?: SessionPast
}

/** Enough to redraw a screen many times. */
const scrollbackBytes = 256 * 1024

/** The command is paused while all readers are this far behind, and resumed when one has caught up. */
const slowBytes = 1024 * 1024
const caughtUpBytes = 256 * 1024

/** A reader that is this far behind while others are not is dropped. */
const lostBytes = 8 * 1024 * 1024

const killAfterMs = 5_000
const recentMs = 5_000

/** A command that runs in a sandbox or machine, with the clients that read its output. */
export class ExecSession {
  readonly id: string
  readonly facts: Readonly<SessionFacts>
  /** Resolves with the exit code, after all readers were told. */
  readonly ended: Promise<number>
  cols: number
  rows: number
  exitCode: number | undefined
  /** In milliseconds since the epoch. */
  lastActivityAt: number | undefined
  readonly #readers = new Set<ExecReader>()
  readonly #scrollback = new Scrollback(scrollbackBytes)
  readonly #rate = new OutputRate()
  readonly #process: BoxSession
  readonly #resolveEnded: (code: number) => void
  #delivered: Promise<unknown> = Promise.resolve()
  #paused = false
  #hasBeenRead = false

  constructor(facts: SessionFacts, { start, onEnd, past }: SessionOptions) {
    this.id = facts.id
    this.facts = facts
    this.cols = facts.cols
    this.rows = facts.rows
    for (const { stream, data } of past?.history ?? []) this.#scrollback.add(stream, data)
    this.lastActivityAt = past?.lastOutputAt || undefined
    const { promise, resolve } = Promise.withResolvers<number>()
    this.ended = promise
    this.#resolveEnded = resolve
    this.#process = start({
      onOutput: (stream, data) => this.#output(stream, data),
      onDrain: () => {
        for (const reader of this.#readers) reader.drained()
      },
      onEnd: (code) => {
        onEnd()
        this.#end(code)
      },
    })
  }

  /** Sends the scrollback, then new output. Returns the function that detaches the reader. */
  attach(reader: ExecReader): () => void {
    this.#hasBeenRead = true
    for (const { stream, data } of this.#scrollback.read()) reader.output(stream, data)
    if (this.exitCode !== undefined) {
      reader.ended(this.exitCode)
      return () => undefined
    }
    if (this.#readers.size === 0) this.#process.setAttached(true)
    this.#readers.add(reader)
    this.balance()
    return () => this.#detach(reader)
  }

  #detach(reader: ExecReader): void {
    if (!this.#readers.delete(reader)) return
    this.balance()
    this.#tellDetached()
  }

  /** The process ends the command when no client attaches in time. */
  #tellDetached(): void {
    if (this.#readers.size === 0 && this.exitCode === undefined) this.#process.setAttached(false)
  }

  #output(stream: OutputStream, data: Buffer): void {
    this.#rate.add(data.length)
    if (data.length > 0) this.lastActivityAt = Date.now()
    this.#scrollback.add(stream, data)
    for (const reader of this.#readers) reader.output(stream, data)
    this.balance()
  }

  /** Pauses the command while all of its readers are slow. Without readers it runs freely. */
  balance(): void {
    let behind = 0
    for (const reader of this.#readers)
      if (reader.backlogBytes() > (this.#paused ? caughtUpBytes : slowBytes)) behind += 1
    const areAllBehind = behind > 0 && behind === this.#readers.size
    if (behind > 0 && !areAllBehind) this.#dropLost()
    if (areAllBehind === this.#paused) return
    this.#paused = areAllBehind
    if (areAllBehind) this.#process.pause()
    else this.#process.resume()
  }

  #dropLost(): void {
    for (const reader of this.#readers) {
      if (reader.backlogBytes() <= lostBytes) continue
      this.#readers.delete(reader)
      reader.drop()
    }
    this.#tellDetached()
  }

  #end(code: number): void {
    this.exitCode = code
    for (const reader of this.#readers) reader.ended(code)
    this.#delivered = Promise.all([...this.#readers].map((reader) => reader.delivered))
    this.#readers.clear()
    this.#resolveEnded(code)
  }

  /** Returns false when the command does not keep up; readers get `drained` when it does. */
  input(data: Buffer): boolean {
    if (!this.facts.stdin) return true
    this.lastActivityAt = Date.now()
    return this.#process.write(data)
  }

  endInput(): void {
    this.#process.endInput()
  }

  resize(cols: number, rows: number): void {
    this.cols = cols
    this.rows = rows
    this.#process.resize(cols, rows)
  }

  /** The pid inside the sandbox, while it is known. */
  get pid(): number | undefined {
    return this.#process.pid
  }

  /** The command line, with the full path of its program as soon as that is known. */
  get command(): string {
    const [program, ...args] = this.facts.argv
    return [this.#process.path ?? program, ...args].join(' ')
  }

  /** Whether a client has followed it in this process. */
  get hasBeenRead(): boolean {
    return this.#hasBeenRead
  }

  signal(signal: number): void {
    if (this.exitCode === undefined) this.#process.signal(signal)
  }

  /** Forgets the exit code. */
  release(): void {
    this.#process.release()
  }

  /** Leaves the command running when this process ends. */
  leave(): void {
    this.#process.leave()
  }

  /** Sends a signal, and SIGKILL if the command has not ended in time. */
  stop(signal: number, timeoutMs = killAfterMs): void {
    this.signal(signal)
    const timer = setTimeout(() => this.signal(9), timeoutMs)
    void this.ended.then(() => clearTimeout(timer))
  }

  /** Resolves with the exit code, or with undefined when the command has not ended in time. */
  endWithin(ms: number): Promise<number | undefined> {
    return within(ms, this.ended)
  }

  /** After the end: resolves when the readers have sent everything to their clients. */
  get delivered(): Promise<unknown> {
    return this.#delivered
  }

  /** The same, or when the time is over. */
  async deliverWithin(ms: number): Promise<void> {
    await within(ms, this.#delivered)
  }

  get isActive(): boolean {
    return this.#readers.size > 0 || Date.now() - (this.lastActivityAt ?? 0) < recentMs
  }

  get bytesPerSecond(): number {
    return this.#rate.bytesPerSecond
  }
}

async function within<T>(ms: number, result: Promise<T>): Promise<T | undefined> {
  const { promise, resolve } = Promise.withResolvers<undefined>()
  const timer = setTimeout(() => resolve(undefined), ms)
  return Promise.race([result, promise]).finally(() => clearTimeout(timer))
}
