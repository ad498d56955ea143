// A client of exec that records every frame in order.
import { WebSocket } from 'ws'
import { until } from './until.ts'

export interface Refused {
  status: number
  headers: Record<string, unknown>
  body: ReturnType<typeof JSON.parse>
}

export class ExecSocket {
  readonly socket: WebSocket
  readonly frames: (string | Buffer)[] = []
  headers: Record<string, unknown> = {}
  closed: { code: number } | undefined

  private constructor(socket: WebSocket) {
    this.socket = socket
    socket.on('message', (data: Buffer, isBinary) => this.frames.push(isBinary ? data : String(data)))
    socket.on('close', (code) => {
      this.closed = { code }
    })
    socket.on('upgrade', ({ headers }) => {
      this.headers = headers
    })
    socket.on('error', () => {})
  }

  static async open(url: string, token: string | null, headers: Record<string, string> = {}): Promise<ExecSocket> {
    const opened = await ExecSocket.attempt(url, token, headers)
    if (opened instanceof ExecSocket) return opened
    throw new Error(`refused with ${opened.status}: ${JSON.stringify(opened.body)}`)
  }

  /** Returns the open socket, or the response that refused it. */
  static attempt(url: string, token: string | null, headers = {}): Promise<ExecSocket | Refused> {
    const all = { ...(token === null ? {} : { authorization: `Bearer ${token}` }), ...headers }
    const socket = new WebSocket(url.replace(/^http/, 'ws'), { headers: all, perMessageDeflate: false })
    const client = new ExecSocket(socket)
    return new Promise((resolve, reject) => {
      socket.on('open', () => resolve(client))
      socket.on('error', reject)
      socket.on('unexpected-response', (_request, reply) => {
        let text = ''
        reply.on('data', (data) => {
          text += data
        })
        reply.on('end', () => resolve({ status: reply.statusCode!, headers: reply.headers, body: JSON.parse(text) }))
      })
    })
  }

  get texts(): Record<string, unknown>[] {
    return this.frames.filter((one) => typeof one === 'string').map((text) => JSON.parse(text.replace(/^control:/, '')))
  }

  /** The first text message of this type. */
  said(type: string): Record<string, unknown> | undefined {
    return this.texts.find((text) => text.type === type)
  }

  get sessionId(): string {
    return String(this.said('session_info')!.session_id)
  }

  /** The bytes of one stream, or without a stream number all binary data, as on a terminal. */
  output(stream?: number): string {
    return this.bytes(stream).toString()
  }

  bytes(stream?: number): Buffer {
    const binary = this.frames.filter((one) => typeof one !== 'string')
    if (stream === undefined) return Buffer.concat(binary)
    return Buffer.concat(binary.filter((one) => one[0] === stream).map((one) => one.subarray(1)))
  }

  stdin(data: string | Buffer): void {
    this.socket.send(Buffer.concat([Buffer.from([0]), Buffer.from(data)]))
  }

  endStdin(): void {
    this.socket.send(Buffer.from([4]))
  }

  say(message: object): void {
    this.socket.send(JSON.stringify(message))
  }

  async untilClosed(seconds = 45): Promise<number> {
    await until(() => this.closed !== undefined, seconds)
    return this.closed!.code
  }

  /** Waits for the connection to close and returns the exit code. */
  async exit(seconds = 45): Promise<number> {
    await this.untilClosed(seconds)
    return Number(this.said('exit')?.exit_code ?? Number.NaN)
  }

  /** Drops the connection without a close frame, as when the network fails. */
  cut(): void {
    this.socket.terminate()
  }
}
