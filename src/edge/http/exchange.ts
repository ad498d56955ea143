import { Refusal, refusalOfMessage } from './answer.ts'
import { type BodyReader, bodyReader, smallBytes, writeBody } from './body.ts'
import type { ClientConnection, EdgeParts } from './client.ts'
import { Encoder, type EncoderUser, type Encoding } from './compress.ts'
import { framingFor, interimText, type ResponseOptions } from './forward.ts'
import { BadMessage, fieldOf, type RequestHead, type ResponseHead, readResponseHead, untilClose } from './message.ts'
import type { Upstream, UpstreamUser } from './upstream.ts'

const endOfHead = Buffer.from('\r\n\r\n')
const maxResponseHeadBytes = 65_536

/** One request on its way to its target, and the answer on its way back. */
export abstract class Exchange implements UpstreamUser, EncoderUser {
  readonly head: RequestHead
  readonly id: string
  protected readonly client: ClientConnection
  protected readonly parts: EdgeParts
  protected upstream: Upstream | undefined
  protected readonly requestBody: BodyReader
  /** What of the body has been sent, where it may have to be sent once more. */
  protected kept: Buffer[] | undefined
  protected hasAnswered = false
  protected isOver = false
  private received: Buffer | undefined
  private response: ResponseHead | undefined
  private responseBody: BodyReader | undefined
  private isChunkedOut = false
  /** Where the body of the answer is not passed on as it is. */
  private encoder: Encoder | undefined
  private isTunnel = false
  /** Gets the body of an answer that is not passed on. */
  private collector: { body: BodyReader; isOpen: boolean; sink(piece: Buffer): void; done(): void } | undefined

  constructor(client: ClientConnection, parts: EdgeParts, head: RequestHead, id: string) {
    this.client = client
    this.parts = parts
    this.head = head
    this.id = id
    this.requestBody = bodyReader(head.body)
  }

  abstract start(): void

  /** Its head as the target gets it. */
  protected abstract requestText(): string
  protected abstract responseText(response: ResponseHead, options: ResponseOptions): string

  /** Whether it does no harm when it is sent a second time. */
  protected abstract get mayRepeat(): boolean

  /** The connection broke before anything of an answer came. False when there is nothing more to try. */
  protected abstract retry(upstream: Upstream): boolean

  /** Another use of an answer than to pass it on. True when it was taken. */
  protected takeAnswer(_response: ResponseHead, _rest: Buffer): boolean {
    return false
  }

  /** The target is of no further use to this request. */
  protected released(): void {}

  protected keepBody(_piece: Buffer): void {}

  protected send(upstream: Upstream): void {
    this.upstream = upstream
    upstream.user = this
    const text = this.requestText()
    if (this.head.body === 0) {
      upstream.socket.write(text, 'latin1')
      return
    }
    upstream.socket.cork()
    upstream.socket.write(text, 'latin1')
    if (this.kept) for (const piece of this.kept) writeBody(upstream.socket, this.head.body < 0, piece)
    if (!this.requestBody.done) this.client.release()
    else if (this.head.body < 0) upstream.socket.write('0\r\n\r\n', 'latin1')
    upstream.socket.uncork()
  }

  /** Takes the request back from a target, to be given to another. */
  protected takeBack(): void {
    const { upstream } = this
    if (upstream) upstream.user = undefined
    this.upstream = undefined
    this.received = undefined
    this.collector = undefined
    this.hasAnswered = false
    if (!this.requestBody.done) this.client.pause()
    this.released()
  }

  /** What the client sends. Answers what is not of this request, to be kept until it is over. */
  onClientData(bytes: Buffer): Buffer | undefined {
    const { upstream } = this
    if (this.isTunnel) {
      if (!upstream!.socket.write(bytes)) this.client.pause()
      return undefined
    }
    if (!upstream || this.requestBody.done || this.isOver) return bytes
    let taken = 0
    try {
      taken = this.takeBody(upstream, bytes)
    } catch (error) {
      this.fail(error instanceof BadMessage ? refusalOfMessage(error.status, error.message) : error)
      return undefined
    }
    return taken < bytes.length ? bytes.subarray(taken) : undefined
  }

  private takeBody(upstream: Upstream, bytes: Buffer): number {
    const { socket } = upstream
    const isChunked = this.head.body < 0
    let flows = true
    socket.cork()
    const taken = this.requestBody.take(bytes, (piece) => {
      flows = writeBody(socket, isChunked, piece) && flows
      if (this.kept) this.keepBody(piece)
    })
    // Trailers end here: what a client adds after its head has passed no check.
    if (this.requestBody.done && isChunked) socket.write('0\r\n\r\n', 'latin1')
    socket.uncork()
    if (!flows && !this.requestBody.done) this.client.pause()
    return taken
  }

  onClientDrain(): void {
    if (this.encoder) this.encoder.resume()
    else this.upstream?.socket.resume()
  }

  /** The client has said that it sends no more. Of a request that is under way it means that nobody waits any more. */
  onClientEnd(): void {
    if (this.isTunnel) this.upstream?.socket.end()
    else this.client.destroy()
  }

  onClientClose(): void {
    this.over()
    this.upstream?.socket.destroy()
    this.encoder?.destroy()
  }

  onUpstreamDrain(): void {
    this.client.resume()
  }

  onUpstreamData(bytes: Buffer): void {
    this.client.touch()
    if (this.isTunnel) {
      this.writeToClient(bytes)
      return
    }
    try {
      if (this.responseBody) this.takeResponseBody(bytes)
      else if (this.collector) this.collect(bytes)
      else this.takeResponseHead(this.received ? Buffer.concat([this.received, bytes]) : bytes)
    } catch (error) {
      const isMalformed = error instanceof BadMessage
      this.fail(isMalformed ? new Refusal(502, 'bad_gateway', `malformed answer: ${error.message}`) : error)
    }
  }

  private takeResponseHead(bytes: Buffer): void {
    const end = bytes.indexOf(endOfHead)
    if (end < 0 && bytes.length < maxResponseHeadBytes) {
      this.received = bytes
      return
    }
    if (end < 0 || end > maxResponseHeadBytes) throw new BadMessage('the head of the answer is too large')
    const response = readResponseHead(bytes.toString('latin1', 0, end), this.head.method !== 'HEAD')
    const rest = bytes.subarray(end + 4)
    this.received = undefined
    this.hasAnswered = true
    if (response.status === 101) this.openTunnel(response, rest)
    else if (response.status >= 200) {
      if (!this.takeAnswer(response, rest)) this.beginResponse(response, rest)
    } else {
      if (this.head.minor === 1) this.client.write(interimText(response))
      if (rest.length > 0) this.takeResponseHead(rest)
    }
  }

  /** Reads an answer to its end without passing it on. */
  protected collectBody(response: ResponseHead, rest: Buffer, sink: (piece: Buffer) => void, done: () => void): void {
    this.collector = { body: bodyReader(response.body), isOpen: response.body === untilClose, sink, done }
    this.collect(rest)
  }

  private collect(bytes: Buffer): void {
    const { body, sink, done } = this.collector!
    body.take(bytes, sink)
    if (body.done && !this.isOver) done()
  }

  /** `sent` is the head that the client gets, where the body goes out in another form than it came. */
  protected beginResponse(response: ResponseHead, rest: Buffer, sent = response, encoding?: Encoding): void {
    const framing = framingFor(this.head, sent)
    this.response = response
    this.isChunkedOut = framing === 'chunked'
    const body = bodyReader(response.body)
    this.responseBody = body
    const keepAlive = this.head.keepAlive && framing !== 'close' && !this.client.isClosing
    this.head.keepAlive = keepAlive
    const text = this.responseText(sent, { id: this.id, keepAlive, framing })
    if (encoding) this.encoder = new Encoder(encoding, this.parts.encoders, this)
    else if (response.body >= 0 && rest.length === response.body && rest.length <= smallBytes) {
      // The usual answer goes out in one piece.
      this.client.write(rest.length === 0 ? text : text + rest.toString('latin1'))
      this.endResponse(false)
      return
    }
    this.client.cork()
    this.client.write(text)
    if (rest.length > 0 || body.done) this.takeResponseBody(rest)
    this.client.uncork()
  }

  private takeResponseBody(bytes: Buffer): void {
    const body = this.responseBody!
    this.client.cork()
    try {
      const taken = body.take(bytes, (piece) => this.writeToClient(piece))
      if (body.done) this.endBody(taken < bytes.length)
    } finally {
      this.client.uncork()
    }
  }

  private endBody(hasMore: boolean): void {
    const { encoder } = this
    if (!encoder) {
      this.writeEnd()
      this.endResponse(hasMore)
      return
    }
    this.leaveUpstream(hasMore)
    encoder.end(() => {
      this.writeEnd()
      this.finish()
    })
  }

  private writeEnd(): void {
    if (this.isChunkedOut) this.client.write(`0\r\n${this.responseBody!.trailer}\r\n`)
  }

  private writeToClient(bytes: Buffer): void {
    const flows = this.encoder ? this.encoder.write(bytes) : this.client.writeBody(bytes, this.isChunkedOut)
    if (!flows) this.upstream!.socket.pause()
  }

  onEncoded(bytes: Buffer): boolean {
    return this.client.writeBody(bytes, this.isChunkedOut)
  }

  onEncoderDrain(): void {
    this.upstream?.socket.resume()
  }

  onEncoderError(): void {
    this.client.destroy()
  }

  /** `hasMore`: the target sent more than its answer, and is not trusted with another request. */
  private endResponse(hasMore: boolean): void {
    this.leaveUpstream(hasMore)
    this.finish()
  }

  private leaveUpstream(hasMore: boolean): void {
    const { upstream, response } = this
    this.over()
    this.upstream = undefined
    if (response!.keepAlive && this.requestBody.done && !hasMore) {
      upstream!.socket.resume()
      this.parts.pool.give(upstream!)
    } else upstream!.socket.destroy()
  }

  private finish(): void {
    this.client.finish(this, this.head.keepAlive && this.requestBody.done)
  }

  private openTunnel(response: ResponseHead, rest: Buffer): void {
    if (!this.head.upgrade) throw new BadMessage('the answer switches to a protocol that was not asked for')
    this.isTunnel = true
    const upgrade = fieldOf(response, 'upgrade') ?? this.head.upgrade
    this.client.write(this.responseText(response, { id: this.id, keepAlive: true, framing: 'length', upgrade }))
    if (rest.length > 0) this.writeToClient(rest)
    this.client.release()
  }

  onUpstreamEnd(): void {
    if (this.isOver) return
    if (this.isTunnel) this.client.end()
    else if (this.response?.body === untilClose) this.endBody(false)
    else if (this.collector?.isOpen) this.collector.done()
    else this.broken()
  }

  onUpstreamClose(): void {
    if (!this.isOver) this.broken()
  }

  private broken(): void {
    const { upstream } = this
    upstream?.socket.destroy()
    if (this.isTunnel || this.response) this.client.destroy()
    else if (upstream && !this.hasAnswered && !this.received && this.mayRepeat && this.retry(upstream)) return
    else this.refuse(new Refusal(502, 'bad_gateway', 'the connection to the program behind this address broke off'))
  }

  protected fail(error: unknown): void {
    if (this.isOver) return
    if (this.response || this.isTunnel) {
      this.upstream?.socket.destroy()
      this.client.destroy()
    } else if (error instanceof Refusal) this.refuse(error)
    else {
      this.parts.onError(error)
      this.refuse(new Refusal(502, 'bad_gateway', 'the request could not be passed on'))
    }
  }

  protected refuse(refusal: Refusal): void {
    this.over()
    this.upstream?.socket.destroy()
    this.client.refuse(this, refusal, this.head.keepAlive && this.requestBody.done)
  }

  protected over(): void {
    if (this.isOver) return
    this.isOver = true
    if (this.upstream) this.upstream.user = undefined
    this.released()
  }
}
