// Connects the standard streams of this process to a command in a sandbox over a WebSocket.
import type { WebSocket } from 'ws'
import type { Session } from '../client.ts'
import { CommandError } from '../errors.ts'
import { type CloseInfo, type OnMessage, openSocket, sendFlushed, waitForClose } from '../socket.ts'
import type { Streams } from './find.ts'
import { ScreenModes } from './screen.ts'

export interface SessionOptions {
  streams: Streams
  takesInput: boolean
  /** Whether Ctrl-\ on a terminal detaches and leaves the command running. */
  canDetach: boolean
}

export type Outcome =
  | { is: 'ended'; code: number; hasSentInput: boolean }
  | { is: 'detached'; id: string; signal?: NodeJS.Signals }

interface SessionInfo {
  type: 'session_info'
  session_id: string
  tty: boolean
}

const frames = { stdin: 0, stdout: 1, stderr: 2, exit: 3, stdinEnd: 4 }

const forwardedSignals: NodeJS.Signals[] = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2']
const detachingSignals: NodeJS.Signals[] = ['SIGTERM', 'SIGHUP']

/** Ctrl-\ as terminals send it, in the legacy encoding and in the kitty keyboard protocol. */
const detachKeys = ['\u001c', '\u001b[92;5u'].map((key) => Buffer.from(key))
const endOfTransmission = Buffer.from([0x04])

/** Runs the command of the path, or attaches to the running session of the path. */
export async function runSession(session: Session, path: string, options: SessionOptions): Promise<Outcome> {
  const client = new SessionClient(options)
  const socket = await openSocket(session, path, client.message)
  return client.follow(socket)
}

class SessionClient {
  readonly #options: SessionOptions
  readonly #screen = new ScreenModes()
  readonly #blocked = new Set<NodeJS.WritableStream>()
  readonly #cleanups: (() => void)[] = []
  #socket: WebSocket | undefined
  #info: SessionInfo | undefined
  #exitCode: number | undefined
  #hasSentInput = false
  #detached: { signal?: NodeJS.Signals } | undefined
  #isOver = false

  constructor(options: SessionOptions) {
    this.#options = options
  }

  async follow(socket: WebSocket): Promise<Outcome> {
    try {
      return await this.#outcome(await waitForClose(socket))
    } finally {
      this.#isOver = true
      for (const cleanUp of this.#cleanups.reverse()) cleanUp()
    }
  }

  async #outcome(closed: CloseInfo): Promise<Outcome> {
    const { output, errors } = this.#options.streams
    for (const stream of [output, errors]) await new Promise<void>((resolve) => stream.write('', () => resolve()))
    if (this.#info?.tty && output.isTTY) output.write(this.#screen.restore())
    if (this.#exitCode !== undefined) return { is: 'ended', code: this.#exitCode, hasSentInput: this.#hasSentInput }
    if (this.#detached && this.#info) return { is: 'detached', id: this.#info.session_id, ...this.#detached }
    throw new CommandError(describeLoss(closed, this.#info))
  }

  /** Takes the socket from the message, because the first message may arrive before openSocket returns it. */
  readonly message: OnMessage = (data, isBinary, socket) => {
    this.#socket = socket
    const { output, errors } = this.#options.streams
    if (!isBinary) this.#handleMessage(JSON.parse(String(data)))
    else if (this.#info?.tty) {
      this.#screen.observe(data)
      this.#write(output, data)
    } else if (data[0] === frames.stdout) this.#write(output, data.subarray(1))
    else if (data[0] === frames.stderr) this.#write(errors, data.subarray(1))
    else if (data[0] === frames.exit) this.#exitCode ??= data[1]
  }

  #handleMessage(message: SessionInfo | { type: 'exit'; exit_code: number } | { type: 'other' }): void {
    if (message.type === 'exit') this.#exitCode = message.exit_code
    if (message.type !== 'session_info') return
    this.#info = message
    this.#start()
  }

  /** Pauses the socket while a stream is full. */
  #write(stream: NodeJS.WritableStream, data: Buffer): void {
    if (stream.write(data) || this.#blocked.has(stream)) return
    this.#blocked.add(stream)
    this.#socket?.pause()
    stream.once('drain', () => {
      this.#blocked.delete(stream)
      if (this.#blocked.size === 0) this.#socket?.resume()
    })
  }

  #start(): void {
    const { streams, takesInput } = this.#options
    const isTerminal = this.#info!.tty && streams.input.isTTY === true
    if (this.#info!.tty) this.#forwardSize()
    if (isTerminal && takesInput) {
      streams.input.setRawMode?.(true)
      this.#cleanups.push(() => streams.input.setRawMode?.(false))
    }
    this.#handleSignals(isTerminal)
    if (takesInput) this.#forwardInput(isTerminal)
  }

  #forwardSize(): void {
    const { output } = this.#options.streams
    const sendSize = () => {
      const { columns: cols, rows } = output
      if (cols && rows) this.#socket!.send(JSON.stringify({ type: 'resize', cols, rows }))
    }
    sendSize()
    output.on('resize', sendSize)
    this.#cleanups.push(() => output.off('resize', sendSize))
  }

  /** On a terminal, Ctrl-C reaches the command as a key, and signals to this process detach. Otherwise signals are forwarded. */
  #handleSignals(isTerminal: boolean): void {
    const take = (signal: NodeJS.Signals) => {
      if (isTerminal) this.#detach({ signal })
      else this.#socket!.send(JSON.stringify({ type: 'signal', signal }))
    }
    const signals = isTerminal ? detachingSignals : forwardedSignals
    for (const signal of signals) process.on(signal, take)
    this.#cleanups.push(() => {
      for (const signal of signals) process.off(signal, take)
    })
  }

  #forwardInput(isTerminal: boolean): void {
    const { input } = this.#options.streams
    const take = (data: Buffer) => {
      if (isTerminal && this.#options.canDetach && detachKeys.some((key) => data.includes(key))) return this.#detach({})
      input.pause()
      void this.#sendInput(data).then(() => {
        if (!this.#isOver) input.resume()
      })
    }
    const end = () => void this.#endInput()
    input.on('data', take).on('end', end)
    input.resume()
    this.#cleanups.push(() => {
      input.off('data', take).off('end', end)
      input.pause()
    })
  }

  #sendInput(data: Buffer): Promise<void> {
    this.#hasSentInput = true
    return sendFlushed(this.#socket!, this.#info!.tty ? data : Buffer.concat([Buffer.from([frames.stdin]), data]))
  }

  #endInput(): Promise<void> {
    return sendFlushed(this.#socket!, this.#info!.tty ? endOfTransmission : Buffer.from([frames.stdinEnd]))
  }

  #detach(how: { signal?: NodeJS.Signals }): void {
    this.#detached = how
    this.#socket!.close(1000)
  }
}

function describeLoss({ reason }: CloseInfo, info: SessionInfo | undefined): string {
  if (!info) return 'the connection was lost before the command started'
  const why = `the connection was lost${reason ? ` (${reason})` : ''}`
  return info.tty ? `${why}; session ${info.session_id} continues unless the platform has stopped` : why
}
