import { findCommandPath, findCommandPid } from '../../drivers/box/process.ts'
import type { OutputStream } from '../../model/sandbox/exec.ts'
import type { ExecProcess, ProcessEvents } from '../process.ts'
import { Scrollback } from './exec-scrollback.ts'

/** Somebody who follows a session: a socket, or the answer to a request. */
export interface ExecReader {
  /** Bytes that were handed to it and have not left yet. It calls `session.balance()` when they have. */
  backlogBytes(): number
  output(stream: OutputStream, data: Buffer): void
  ended(code: number): void
  /** The command reads its input again. */
  drained(): void
  /** It is far behind while others are not, and is no longer served. */
  drop(): void
}

export interface SessionFacts {
  id: string
  sandboxId: string
  /** As it was asked for. */
  argv: [string, ...string[]]
  workdir: string
  tty: boolean
  /** Whether it takes input at all. */
  stdin: boolean
  cols: number
  rows: number
  maxRunAfterDisconnectMs: number | null
}

/** Enough for a screen many times over. */
const scrollbackBytes = 256 * 1024

/** When everybody is this far behind, the command waits. */
const slowBytes = 1024 * 1024
const caughtUpBytes = 256 * 1024

/** When somebody is this far behind and others are not, nobody waits for it. */
const lostBytes = 8 * 1024 * 1024

const killAfterMs = 5_000
const recentMs = 5_000

/** A command that runs in a sandbox, and those who follow it. */
export class ExecSession {
  readonly id: string
  readonly facts: Readonly<SessionFacts>
  readonly createdAt = new Date()
  /** Resolves with the code of the command, after everybody was told. */
  readonly ended: Promise<number>
  cols: number
  rows: number
  exitCode: number | undefined
  /** In milliseconds since the epoch. */
  lastActivityAt: number | undefined
  readonly #readers = new Set<ExecReader>()
  readonly #scrollback = new Scrollback(scrollbackBytes)
  readonly #process: ExecProcess
  readonly #tellEnd: (code: number) => void
  #paused = false
  #deserted: NodeJS.Timeout | undefined
  #path: string | undefined
  #rate = { second: 0, bytes: 0, before: 0 }

  /** `onEnd` is called before anybody is told. */
  constructor(facts: SessionFacts, start: (events: ProcessEvents) => ExecProcess, onEnd: () => void) {
    this.id = facts.id
    this.facts = facts
    this.cols = facts.cols
    this.rows = facts.rows
    const { promise, resolve } = Promise.withResolvers<number>()
    this.ended = promise
    this.#tellEnd = resolve
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

  /** What was written before comes first. Returns how to leave. */
  attach(reader: ExecReader): () => void {
    clearTimeout(this.#deserted)
    for (const { stream, data } of this.#scrollback.read()) reader.output(stream, data)
    if (this.exitCode !== undefined) {
      reader.ended(this.exitCode)
      return () => undefined
    }
    this.#readers.add(reader)
    this.balance()
    return () => this.#leave(reader)
  }

  #leave(reader: ExecReader): void {
    if (!this.#readers.delete(reader)) return
    this.balance()
    const limit = this.facts.maxRunAfterDisconnectMs
    if (this.#readers.size > 0 || this.exitCode !== undefined || limit === null) return
    this.#deserted = setTimeout(() => this.stop(15), limit)
    this.#deserted.unref()
  }

  #output(stream: OutputStream, data: Buffer): void {
    this.#count(data.length)
    this.#scrollback.add(stream, data)
    for (const reader of this.#readers) reader.output(stream, data)
    this.balance()
  }

  /** Holds the command back while everybody who follows it is slow; without anybody it runs freely. */
  balance(): void {
    let behind = 0
    for (const reader of this.#readers)
      if (reader.backlogBytes() > (this.#paused ? caughtUpBytes : slowBytes)) behind += 1
    const everybody = behind > 0 && behind === this.#readers.size
    if (behind > 0 && !everybody) this.#dropTheLost()
    if (everybody === this.#paused) return
    this.#paused = everybody
    if (everybody) this.#process.pause()
    else this.#process.resume()
  }

  #dropTheLost(): void {
    for (const reader of this.#readers) {
      if (reader.backlogBytes() <= lostBytes) continue
      this.#readers.delete(reader)
      reader.drop()
    }
  }

  #end(code: number): void {
    this.exitCode = code
    clearTimeout(this.#deserted)
    for (const reader of this.#readers) reader.ended(code)
    this.#readers.clear()
    this.#tellEnd(code)
  }

  /** False when the command does not keep up; `drained` says when it does. */
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

  /** As seen inside; undefined when it cannot be told. */
  get pid(): number | undefined {
    const { pid } = this.#process
    return pid === undefined ? undefined : findCommandPid(pid)
  }

  /** With the whole path of its program, as soon as that is known. */
  get command(): string {
    const { pid } = this.#process
    if (this.#path === undefined && pid !== undefined) this.#path = findCommandPath(pid)
    const [program, ...args] = this.facts.argv
    return [this.#path ?? program, ...args].join(' ')
  }

  signal(signal: number): void {
    if (this.exitCode === undefined) this.#process.signal(signal)
  }

  /** Asks it to end with this signal, and ends it if it does not. */
  stop(signal: number, afterMs = killAfterMs): void {
    this.signal(signal)
    const timer = setTimeout(() => this.signal(9), afterMs)
    void this.ended.then(() => clearTimeout(timer))
  }

  get isActive(): boolean {
    return this.#readers.size > 0 || Date.now() - (this.lastActivityAt ?? 0) < recentMs
  }

  /** Bytes of output in the last whole second. */
  get bytesPerSecond(): number {
    this.#count(0)
    return this.#rate.before
  }

  #count(bytes: number): void {
    const now = Date.now()
    const second = Math.floor(now / 1000)
    const rate = this.#rate
    if (second !== rate.second) this.#rate = { second, bytes, before: second === rate.second + 1 ? rate.bytes : 0 }
    else rate.bytes += bytes
    if (bytes > 0) this.lastActivityAt = now
  }
}
