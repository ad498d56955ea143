import { Refusal } from '../refusal.ts'
import type { Upstream, UpstreamUser } from '../tcp/upstream.ts'
import type { Peer } from '../types.ts'
import { refuseMessage } from './answer.ts'
import type { Backend } from './backend.ts'
import { smallBytes } from './body.ts'
import { BodyCollector, type BodyCollectorOptions } from './body-collector.ts'
import type { HttpContext } from './context.ts'
import { framingFor, interimText } from './forwarded-head.ts'
import { BadMessage, fieldOf, type RequestHead, type ResponseHead } from './message.ts'
import { RequestBody } from './request-body.ts'
import { ResponseHeadReader } from './response-head-reader.ts'
import type { ResponseSink } from './response-sink.ts'
import { ResponseWriter } from './response-writer.ts'
import { UpgradedStream } from './upgraded-stream.ts'

/** The client's connection as an exchange uses it. */
export interface ExchangeClient {
  readonly peer: Peer
  /** The local address, if it belongs to a single app. */
  readonly address: string | undefined
  /** The connection closes after the next response. */
  readonly isClosing: boolean
  write(text: string): void
  writeBody(bytes: Buffer, isChunked: boolean): boolean
  cork(): void
  uncork(): void
  pause(): void
  resume(): void
  /** Delivers the bytes that arrived while the exchange had no upstream, and resumes reading. */
  release(): void
  /** Restarts the idle timeout. */
  touch(): void
  limitIdle(timeoutMs: number | undefined): void
  end(): void
  destroy(): void
  finish(exchange: Exchange, keepAlive: boolean): void
  refuse(exchange: Exchange, refusal: Refusal, keepAlive: boolean): void
}

/** One request and its response, between a client and the upstream that the backend chooses. */
export class Exchange implements UpstreamUser {
  readonly client: ExchangeClient
  readonly head: RequestHead
  readonly id: string
  readonly body: RequestBody
  private readonly context: HttpContext
  private readonly backend: Backend
  private upstream: Upstream | undefined
  /** The phase of the response. */
  private sink: ResponseSink
  private keepAlive: boolean
  private hasEnded = false

  constructor(
    client: ExchangeClient,
    context: HttpContext,
    { head, id }: { head: RequestHead; id: string },
    createBackend: (exchange: Exchange) => Backend,
  ) {
    this.client = client
    this.context = context
    this.head = head
    this.id = id
    this.keepAlive = head.keepAlive
    this.body = new RequestBody(head)
    this.sink = this.readHead()
    this.backend = createBackend(this)
  }

  get isOver(): boolean {
    return this.hasEnded
  }

  start(): void {
    this.backend.start()
  }

  private readHead(): ResponseHeadReader {
    return new ResponseHeadReader(this.head.method !== 'HEAD', (response, rest) => this.onResponse(response, rest))
  }

  /** Sends the request to an upstream. `text` is its head. */
  send(upstream: Upstream, text: string): void {
    const { socket } = upstream
    this.upstream = upstream
    upstream.user = this
    if (this.head.body === 0) {
      socket.write(text, 'latin1')
      return
    }
    socket.cork()
    socket.write(text, 'latin1')
    this.body.resend(socket)
    if (this.body.isDone) this.body.writeEnd(socket)
    else this.client.release()
    socket.uncork()
  }

  /** Detaches the upstream, so that the request can be sent to another one. */
  detach(): Upstream | undefined {
    const { upstream } = this
    if (upstream) upstream.user = undefined
    this.upstream = undefined
    this.sink = this.readHead()
    if (!this.body.isDone) this.client.pause()
    return upstream
  }

  /** Reads the body of the current response instead of forwarding it. */
  collect(response: ResponseHead, rest: Buffer, options: BodyCollectorOptions): void {
    const collector = new BodyCollector(response, options)
    this.sink = collector
    collector.take(rest)
  }

  /** Returns the bytes that belong to the next request. */
  onClientData(bytes: Buffer): Buffer | undefined {
    const { upstream, sink } = this
    if (sink instanceof UpgradedStream) {
      sink.takeFromClient(bytes)
      return undefined
    }
    if (!upstream || this.body.isDone || this.hasEnded) return bytes
    try {
      const { takenBytes, isBlocked } = this.body.forward(upstream.socket, bytes)
      if (isBlocked && !this.body.isDone) this.client.pause()
      return takenBytes < bytes.length ? bytes.subarray(takenBytes) : undefined
    } catch (error) {
      this.fail(error instanceof BadMessage ? refuseMessage(error) : error)
      return undefined
    }
  }

  onClientDrain(): void {
    if (this.sink instanceof ResponseWriter) this.sink.resume()
    else this.upstream?.socket.resume()
  }

  /** A client that half-closes during a request is treated as gone. */
  onClientEnd(): void {
    if (this.sink instanceof UpgradedStream) this.sink.endFromClient()
    else this.client.destroy()
  }

  onClientClose(): void {
    this.end()
    this.upstream?.socket.destroy()
    if (this.sink instanceof ResponseWriter) this.sink.destroy()
  }

  onUpstreamDrain(): void {
    this.client.resume()
  }

  onUpstreamData(bytes: Buffer): void {
    this.client.touch()
    try {
      this.sink.take(bytes)
    } catch (error) {
      const isMalformed = error instanceof BadMessage
      this.fail(isMalformed ? new Refusal(502, 'bad_gateway', `malformed response: ${error.message}`) : error)
    }
  }

  private onResponse(response: ResponseHead, rest: Buffer): void {
    if (response.status === 101) this.upgrade(response, rest)
    else if (response.status >= 200) {
      if (!this.backend.intercept(response, rest)) this.respond(response, rest)
    } else {
      if (this.head.minor === 1) this.client.write(interimText(response))
      if (rest.length > 0) this.sink.take(rest)
    }
  }

  private respond(response: ResponseHead, rest: Buffer): void {
    const { client, backend } = this
    const { head: sent, encoding } = backend.encode(response) ?? { head: response, encoding: undefined }
    const framing = framingFor(this.head, sent)
    this.keepAlive = this.keepAlive && framing !== 'close' && !client.isClosing
    const text = backend.responseText(sent, { id: this.id, keepAlive: this.keepAlive, framing })
    const isComplete = response.body >= 0 && rest.length === response.body
    if (!encoding && isComplete && rest.length <= smallBytes) {
      // A small response that arrived in one piece is also sent in one piece.
      client.write(rest.length === 0 ? text : text + rest.toString('latin1'))
      this.leaveUpstream(response.keepAlive)
      this.finish()
      return
    }
    const writer = new ResponseWriter({
      client,
      upstream: this.upstream!.socket,
      response,
      isChunked: framing === 'chunked',
      encoding,
      encoders: this.context.encoders,
      onBodyEnd: (hasExcess) => this.leaveUpstream(response.keepAlive && !hasExcess),
      onWritten: () => this.finish(),
    })
    this.sink = writer
    writer.start(text, rest)
  }

  private upgrade(response: ResponseHead, rest: Buffer): void {
    const { client, head } = this
    if (!head.upgrade) throw new BadMessage('it switches to a protocol that the client did not request')
    const stream = new UpgradedStream(client, this.upstream!.socket)
    this.sink = stream
    const upgrade = fieldOf(response, 'upgrade') ?? head.upgrade
    client.write(this.backend.responseText(response, { id: this.id, keepAlive: true, framing: 'length', upgrade }))
    if (rest.length > 0) stream.take(rest)
    client.release()
  }

  /** The upstream is done with this request; its connection goes back to the pool if it can be reused. */
  private leaveUpstream(isReusable: boolean): void {
    const upstream = this.upstream!
    this.end()
    this.upstream = undefined
    if (isReusable && this.body.isDone) {
      upstream.socket.resume()
      this.context.pool.give(upstream)
    } else upstream.socket.destroy()
  }

  private finish(): void {
    this.client.finish(this, this.keepAlive && this.body.isDone)
  }

  onUpstreamEnd(): void {
    if (!this.hasEnded && !this.sink.end()) this.onBroken()
  }

  onUpstreamClose(): void {
    if (!this.hasEnded) this.onBroken()
  }

  private onBroken(): void {
    const { upstream, sink } = this
    upstream?.socket.destroy()
    if (sink.isVisible) this.client.destroy()
    else if (upstream && sink instanceof ResponseHeadReader && sink.isUntouched && this.backend.retry(upstream)) return
    else this.refuse(new Refusal(502, 'bad_gateway', 'the program closed the connection before it had answered'))
  }

  /** Reports an error to the client; after the response has begun, by closing the connection. */
  fail(error: unknown): void {
    if (this.hasEnded) return
    if (this.sink.isVisible) {
      this.upstream?.socket.destroy()
      this.client.destroy()
    } else if (error instanceof Refusal) this.refuse(error)
    else {
      this.context.onError(error)
      this.refuse(new Refusal(502, 'bad_gateway', 'the request could not be forwarded'))
    }
  }

  refuse(refusal: Refusal): void {
    this.end()
    this.upstream?.socket.destroy()
    this.client.refuse(this, refusal, this.keepAlive && this.body.isDone)
  }

  private end(): void {
    if (this.hasEnded) return
    this.hasEnded = true
    if (this.upstream) this.upstream.user = undefined
    this.body.freeCopy()
    this.backend.release()
  }
}
