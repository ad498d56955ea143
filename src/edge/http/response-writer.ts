import type { Duplex } from 'node:stream'
import { type BodyReader, bodyReader } from './body.ts'
import { Encoder, type EncoderLimit, type EncoderUser, type Encoding } from './compress.ts'
import { type ResponseHead, untilClose } from './message.ts'
import type { ResponseSink } from './response-sink.ts'

interface ResponseClient {
  write(text: string): void
  writeBody(bytes: Buffer, isChunked: boolean): boolean
  cork(): void
  uncork(): void
  destroy(): void
}

export interface ResponseWriterOptions {
  client: ResponseClient
  /** The socket of the upstream, which is paused while the client is slow. */
  upstream: Duplex
  /** The response as the upstream sent it. */
  response: ResponseHead
  /** The client gets the body in chunks. */
  isChunked: boolean
  encoding: Encoding | undefined
  encoders: EncoderLimit
  /** The upstream has sent the whole body. `hasExcess`: and more than that, so its connection cannot be reused. */
  onBodyEnd(hasExcess: boolean): void
  /** The client has been sent the whole response. */
  onWritten(): void
}

/** Forwards the body of a response to the client, compressed if the client accepts that. */
export class ResponseWriter implements ResponseSink, EncoderUser {
  readonly isVisible = true
  private readonly options: ResponseWriterOptions
  private readonly reader: BodyReader
  private readonly encoder: Encoder | undefined
  /** Undefined once the body has ended: then the connection may serve another request already. */
  private upstream: Duplex | undefined

  constructor(options: ResponseWriterOptions) {
    const { response, encoding, encoders, upstream } = options
    this.options = options
    this.upstream = upstream
    this.reader = bodyReader(response.body)
    this.encoder = encoding && new Encoder(encoding, encoders, this)
  }

  /** Sends the head, and what has arrived of the body. */
  start(head: string, rest: Buffer): void {
    const { client } = this.options
    client.cork()
    client.write(head)
    if (rest.length > 0 || this.reader.done) this.take(rest)
    client.uncork()
  }

  take(bytes: Buffer): void {
    const { client } = this.options
    client.cork()
    try {
      const takenBytes = this.reader.take(bytes, (piece) => this.write(piece))
      if (this.reader.done) this.endBody(takenBytes < bytes.length)
    } finally {
      client.uncork()
    }
  }

  private write(bytes: Buffer): void {
    const { client, isChunked } = this.options
    const isWritable = this.encoder ? this.encoder.write(bytes) : client.writeBody(bytes, isChunked)
    if (!isWritable) this.upstream?.pause()
  }

  end(): boolean {
    const endsWithConnection = this.options.response.body === untilClose
    if (endsWithConnection) this.endBody(false)
    return endsWithConnection
  }

  private endBody(hasExcess: boolean): void {
    const { onBodyEnd } = this.options
    this.upstream = undefined
    if (!this.encoder) {
      this.writeEnd()
      onBodyEnd(hasExcess)
      this.options.onWritten()
      return
    }
    onBodyEnd(hasExcess)
    this.encoder.end(() => {
      this.writeEnd()
      this.options.onWritten()
    })
  }

  private writeEnd(): void {
    if (this.options.isChunked) this.options.client.write(`0\r\n${this.reader.trailer}\r\n`)
  }

  /** The client can take more. */
  resume(): void {
    if (this.encoder) this.encoder.resume()
    else this.upstream?.resume()
  }

  /** The client is gone. */
  destroy(): void {
    this.encoder?.destroy()
  }

  onEncoded(bytes: Buffer): boolean {
    return this.options.client.writeBody(bytes, this.options.isChunked)
  }

  onEncoderDrain(): void {
    this.upstream?.resume()
  }

  onEncoderError(): void {
    this.options.client.destroy()
  }
}
