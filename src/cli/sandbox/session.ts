// A command in a sandbox, joined to the streams of this process over a WebSocket.
import type { WebSocket } from 'ws'
import type { Session } from '../client.ts'
import { Failure } from '../failure.ts'
import { type Closed, type OnMessage, openSocket, sendAll, whenClosed } from '../socket.ts'
import type { Streams } from './find.ts'
import { ScreenModes } from './screen.ts'

export interface Joined {
  streams: Streams
  takesInput: boolean
  /** Ctrl-\ leaves a command on a terminal running. */
  canLeave: boolean
}

export type Outcome =
  /** `hasTyped`: something was sent to it. */
  { is: 'ended'; code: number; hasTyped: boolean } | { is: 'left'; id: string; signal?: NodeJS.Signals }

interface SessionInfo {
  type: 'session_info'
  session_id: string
  tty: boolean
}

const frames = { stdin: 0, stdout: 1, stderr: 2, exit: 3, stdinEnd: 4 }

const forwarded: NodeJS.Signals[] = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2']
const leaving: NodeJS.Signals[] = ['SIGTERM', 'SIGHUP']

/** Ctrl-\, as terminals send it, and as those do that a program has asked for unmistakable keys. */
const leaveKeys = ['\u001c', '\u001b[92;5u'].map((key) => Buffer.from(key))
const endOfTyping = Buffer.from([0x04])

/** Runs the command that the path names, or joins the one that runs already. */
export async function runSession(session: Session, path: string, joined: Joined): Promise<Outcome> {
  const client = new SessionClient(joined)
  const socket = await openSocket(session, path, client.message)
  return client.follow(socket)
}

class SessionClient {
  readonly #joined: Joined
  readonly #screen = new ScreenModes()
  readonly #blocked = new Set<NodeJS.WritableStream>()
  readonly #undo: (() => void)[] = []
  #socket: WebSocket | undefined
  #info: SessionInfo | undefined
  #code: number | undefined
  #hasTyped = false
  #left: { signal?: NodeJS.Signals } | undefined
  #isOver = false

  constructor(joined: Joined) {
    this.#joined = joined
  }

  async follow(socket: WebSocket): Promise<Outcome> {
    try {
      return await this.#outcome(await whenClosed(socket))
    } finally {
      this.#isOver = true
      for (const undo of this.#undo.reverse()) undo()
    }
  }

  async #outcome(closed: Closed): Promise<Outcome> {
    const { output, errors } = this.#joined.streams
    for (const stream of [output, errors]) await new Promise<void>((resolve) => stream.write('', () => resolve()))
    if (this.#info?.tty && output.isTTY) output.write(this.#screen.restore())
    if (this.#code !== undefined) return { is: 'ended', code: this.#code, hasTyped: this.#hasTyped }
    if (this.#left && this.#info) return { is: 'left', id: this.#info.session_id, ...this.#left }
    throw new Failure(lossText(closed, this.#info))
  }

  /** The first ones may come together with the connection, and a signal right after them. */
  readonly message: OnMessage = (data, isBinary, socket) => {
    this.#socket = socket
    const { output, errors } = this.#joined.streams
    if (!isBinary) this.#obey(JSON.parse(String(data)))
    else if (this.#info?.tty) {
      this.#screen.look(data)
      this.#pour(output, data)
    } else if (data[0] === frames.stdout) this.#pour(output, data.subarray(1))
    else if (data[0] === frames.stderr) this.#pour(errors, data.subarray(1))
    else if (data[0] === frames.exit) this.#code ??= data[1]
  }

  #obey(message: SessionInfo | { type: 'exit'; exit_code: number } | { type: 'other' }): void {
    if (message.type === 'exit') this.#code = message.exit_code
    if (message.type !== 'session_info') return
    this.#info = message
    this.#start()
  }

  /** No faster than it is read here. */
  #pour(stream: NodeJS.WritableStream, data: Buffer): void {
    if (stream.write(data) || this.#blocked.has(stream)) return
    this.#blocked.add(stream)
    this.#socket?.pause()
    stream.once('drain', () => {
      this.#blocked.delete(stream)
      if (this.#blocked.size === 0) this.#socket?.resume()
    })
  }

  #start(): void {
    const { streams, takesInput } = this.#joined
    const isTerminal = this.#info!.tty && streams.input.isTTY === true
    if (this.#info!.tty) this.#followSize()
    if (isTerminal && takesInput) {
      streams.input.setRawMode?.(true)
      this.#undo.push(() => streams.input.setRawMode?.(false))
    }
    this.#takeSignals(isTerminal)
    if (takesInput) this.#takeInput(isTerminal)
  }

  #followSize(): void {
    const { output } = this.#joined.streams
    const tell = () => {
      const { columns: cols, rows } = output
      if (cols && rows) this.#socket!.send(JSON.stringify({ type: 'resize', cols, rows }))
    }
    tell()
    output.on('resize', tell)
    this.#undo.push(() => output.off('resize', tell))
  }

  /** Those who type at a terminal send signals with its keys; what ends this process leaves the command running. */
  #takeSignals(isTerminal: boolean): void {
    const take = (signal: NodeJS.Signals) => {
      if (isTerminal) this.#leave({ signal })
      else this.#socket!.send(JSON.stringify({ type: 'signal', signal }))
    }
    const signals = isTerminal ? leaving : forwarded
    for (const signal of signals) process.on(signal, take)
    this.#undo.push(() => {
      for (const signal of signals) process.off(signal, take)
    })
  }

  #takeInput(isTerminal: boolean): void {
    const { input } = this.#joined.streams
    const take = (data: Buffer) => {
      if (isTerminal && this.#joined.canLeave && leaveKeys.some((key) => data.includes(key))) return this.#leave({})
      input.pause()
      void this.#type(data).then(() => {
        if (!this.#isOver) input.resume()
      })
    }
    const end = () => void this.#endInput()
    input.on('data', take).on('end', end)
    input.resume()
    this.#undo.push(() => {
      input.off('data', take).off('end', end)
      input.pause()
    })
  }

  #type(data: Buffer): Promise<void> {
    this.#hasTyped = true
    return sendAll(this.#socket!, this.#info!.tty ? data : Buffer.concat([Buffer.from([frames.stdin]), data]))
  }

  #endInput(): Promise<void> {
    return sendAll(this.#socket!, this.#info!.tty ? endOfTyping : Buffer.from([frames.stdinEnd]))
  }

  #leave(how: { signal?: NodeJS.Signals }): void {
    this.#left = how
    this.#socket!.close(1000)
  }
}

function lossText({ reason }: Closed, info: SessionInfo | undefined): string {
  if (!info) return 'the connection was lost before the command began'
  const why = `the connection was lost${reason ? ` (${reason})` : ''}`
  return info.tty ? `${why}; session ${info.session_id} goes on if the platform does` : why
}
