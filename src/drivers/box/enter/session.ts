// The connection to a process that holds the command of a session; see hold.pl. Both directions carry frames: a letter, a
// length of four bytes, and that many bytes. What the process sends is not trusted: it has the privileges of the box.
import { rmSync } from 'node:fs'
import type { Socket } from 'node:net'
import { type OutputStream, stderrByte, stdoutByte } from '../../../model/output-stream.ts'
import type { BoxSession, SessionEvents, SessionStart } from '../driver.ts'
import { readInnerPid } from '../process.ts'
import type { EnterSpares } from './spare.ts'

/** What the process says of itself when a connection begins. */
export interface Greeting {
  /** Of the command, on the host. */
  pid: number
  path: string | undefined
  cols: number
  rows: number
  lastOutputAt: number
  facts: string
  /** The latest output before this connection. */
  history: { stream: OutputStream; data: Buffer }[]
}

/** Input beyond this is not taken from the client until the command has read some. */
const maxBufferedBytes = 1024 * 1024
/** The process buffers so much input, and asks for more when the command has read some. */
const windowBytes = 256 * 1024
const inputPieceBytes = 64 * 1024
const maxFrameBytes = 1024 * 1024
const headerBytes = 5
/** The exit code when the process was killed, and when it could not be started. */
const codes = { killed: 137, notStarted: 125 }

/** Starts the process, which listens on the socket file and then enters the box of the request. */
export function startSession(
  spares: EnterSpares,
  request: Record<string, string[]>,
  socketFile: string,
  { maxRunAfterDisconnectMs, isTerminal, cols, rows, facts }: SessionStart,
): SessionConnection {
  const limit = maxRunAfterDisconnectMs === null ? '' : String(maxRunAfterDisconnectMs)
  const session = [socketFile, limit, isTerminal ? '1' : '', String(cols), String(rows), facts]
  return new SessionConnection(spares.startSession({ ...request, session }), socketFile)
}

export class SessionConnection implements BoxSession {
  /** Undefined when the connection ends before. */
  readonly greeting: Promise<Greeting | undefined>
  private readonly resolveGreeting: (greeting: Greeting | undefined) => void
  private readonly channel: Socket
  private readonly socketFile: string
  private greeted: Greeting | undefined
  private events: SessionEvents | undefined
  private isReady = false
  private exitCode: number | undefined
  private unread: Buffer = Buffer.alloc(0)
  private input: Buffer[] = []
  private inputBytes = 0
  private sentBytes = 0
  private isInputEnding = false
  private hasInputEnded = false
  private isPaused = false
  private hasEnded = false
  private error: Error | undefined

  constructor(channel: Socket, socketFile: string) {
    this.channel = channel
    this.socketFile = socketFile
    const { promise, resolve } = Promise.withResolvers<Greeting | undefined>()
    this.greeting = promise
    this.resolveGreeting = resolve
    channel.on('data', (data: Buffer) => this.receive(data))
    channel.on('error', (error) => {
      this.error = error
    })
    channel.on('close', () => this.lose())
  }

  /** Delivers what comes after the greeting. */
  follow(events: SessionEvents): this {
    this.events = events
    this.resume()
    const { exitCode } = this
    if (exitCode !== undefined) queueMicrotask(() => this.end(exitCode))
    return this
  }

  /** Nobody listens on the socket file any more. */
  get isRefused(): boolean {
    return (this.error as NodeJS.ErrnoException | undefined)?.code === 'ECONNREFUSED'
  }

  get pid(): number | undefined {
    return this.hasEnded || this.greeted === undefined ? undefined : readInnerPid(this.greeted.pid)
  }

  get path(): string | undefined {
    return this.greeted?.path
  }

  write(data: Buffer): boolean {
    if (this.hasEnded || this.isInputEnding) return true
    this.input.push(data)
    this.inputBytes += data.length
    this.sendInput()
    return this.inputBytes + this.sentBytes < maxBufferedBytes
  }

  endInput(): void {
    if (this.isInputEnding) return
    this.isInputEnding = true
    this.sendInput()
  }

  resize(cols: number, rows: number): void {
    const size = Buffer.alloc(4)
    size.writeUInt16BE(cols, 0)
    size.writeUInt16BE(rows, 2)
    this.send('w', size)
  }

  signal(signal: number): void {
    this.send('s', Buffer.from([signal]))
  }

  setAttached(isAttached: boolean): void {
    this.send(isAttached ? 'a' : 'd')
  }

  pause(): void {
    this.isPaused = true
    this.channel.pause()
  }

  resume(): void {
    this.isPaused = false
    this.channel.resume()
    queueMicrotask(() => this.receive(Buffer.alloc(0)))
  }

  release(): void {
    this.send('q')
    this.channel.end()
    rmSync(this.socketFile, { force: true })
  }

  leave(): void {
    this.events = undefined
    this.hasEnded = true
    this.channel.destroy()
  }

  private send(kind: string, data: Buffer = Buffer.alloc(0)): void {
    if (this.channel.destroyed || this.channel.writableEnded) return
    const header = Buffer.alloc(headerBytes)
    header.write(kind, 'latin1')
    header.writeUInt32BE(data.length, 1)
    this.channel.write(Buffer.concat([header, data]))
  }

  private sendInput(): void {
    while (this.inputBytes > 0 && this.sentBytes < windowBytes) {
      const first = this.input[0]!
      const piece = first.subarray(0, Math.min(inputPieceBytes, windowBytes - this.sentBytes))
      if (piece.length === first.length) this.input.shift()
      else this.input[0] = first.subarray(piece.length)
      this.inputBytes -= piece.length
      this.sentBytes += piece.length
      if (piece.length > 0) this.send('i', piece)
    }
    if (!this.isInputEnding || this.inputBytes > 0 || this.hasInputEnded) return
    this.hasInputEnded = true
    this.send('e')
  }

  private receive(data: Buffer): void {
    this.unread = this.unread.length === 0 ? data : Buffer.concat([this.unread, data])
    while (this.unread.length >= headerBytes && !this.isPaused) {
      const length = this.unread.readUInt32BE(1)
      if (length > maxFrameBytes) return void this.channel.destroy()
      if (this.unread.length < headerBytes + length) return
      if (this.isReady && !this.events) return void this.channel.pause()
      const kind = this.unread.toString('latin1', 0, 1)
      const body = this.unread.subarray(headerBytes, headerBytes + length)
      this.unread = this.unread.subarray(headerBytes + length)
      this.take(kind, body)
    }
  }

  private take(kind: string, body: Buffer): void {
    if (this.hasEnded) return
    if (kind === 'h') this.greet(body)
    else if (kind === 'r') this.ready()
    else if (kind === '1' || kind === '2') this.output(streams[kind], body)
    else if (kind === 'c' && body.length === 4) this.credit(body.readUInt32BE())
    else if (kind === 'x' && body.length === 1) this.end(body[0]!)
    else this.channel.destroy()
  }

  private output(stream: OutputStream, data: Buffer): void {
    if (this.events) this.events.onOutput(stream, data)
    else this.greeted?.history.push({ stream, data: Buffer.from(data) })
  }

  private ready(): void {
    this.isReady = true
    this.resolveGreeting(this.greeted)
  }

  private greet(body: Buffer): void {
    const [pid, path, cols, rows, lastOutputAt, unreadBytes, ...facts] = body.toString().split('\0')
    const numbers = [pid, cols, rows, lastOutputAt, unreadBytes].map(Number)
    if (facts.length !== 1 || !numbers.every((number) => Number.isSafeInteger(number) && number >= 0))
      return void this.channel.destroy()
    // Input may have been sent before the greeting, and is not counted in it.
    if (this.sentBytes === 0) this.sentBytes = numbers[4]!
    this.greeted = {
      pid: numbers[0]!,
      path: path || undefined,
      cols: numbers[1]!,
      rows: numbers[2]!,
      lastOutputAt: numbers[3]!,
      facts: facts[0]!,
      history: [],
    }
  }

  private credit(bytes: number): void {
    this.sentBytes = Math.max(0, this.sentBytes - bytes)
    this.sendInput()
    if (this.inputBytes + this.sentBytes < maxBufferedBytes) this.events?.onDrain()
  }

  /** Unless this side has left, the process has ended. */
  private lose(): void {
    this.resume() // so that nothing received stays undelivered
    this.receive(Buffer.alloc(0))
    this.resolveGreeting(undefined)
    if (this.events) rmSync(this.socketFile, { force: true })
    if (this.hasEnded) return
    const isStarted = this.greeted !== undefined || this.error === undefined
    if (!isStarted) {
      const reason = `the command could not be started: ${this.error?.message}\n`
      this.events?.onOutput(stderrByte, Buffer.from(reason))
    }
    this.end(isStarted ? codes.killed : codes.notStarted)
  }

  private end(code: number): void {
    this.exitCode = code
    if (!this.events) return
    this.hasEnded = true
    this.input = []
    this.inputBytes = 0
    this.events?.onDrain()
    this.events?.onEnd(code)
  }
}

const streams: Record<'1' | '2', OutputStream> = { '1': stdoutByte, '2': stderrByte }
