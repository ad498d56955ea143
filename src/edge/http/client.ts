import type { Duplex } from 'node:stream'
import { Refusal } from '../refusal.ts'
import { type AppRoute, findPort } from '../routing/app.ts'
import type { SandboxRoute } from '../routing/sandbox.ts'
import type { Peer } from '../types.ts'
import { type AnswerOptions, answerText, refusalText, refuseMessage } from './answer.ts'
import { AppBackend } from './app-backend.ts'
import { writeBody } from './body.ts'
import type { HttpContext } from './context.ts'
import { Exchange, type ExchangeClient } from './exchange.ts'
import { BadMessage, type RequestHead, readRequestHead } from './message.ts'
import { RequestBuffer } from './request-buffer.ts'
import { SandboxBackend } from './sandbox-backend.ts'

const firstRequestTimeoutMs = 15_000
const defaultHeadTimeoutMs = 10_000
const keepAliveTimeoutMs = 75_000
const streamTimeoutMs = 3_600_000
const lingerMs = 2_000
/** Idle connections stay open this long while the edge drains, as a request may be on its way already. */
const drainIdleMs = 3_000

export interface ClientOrigin {
  peer: Peer
  /** The local address, if it belongs to a single app, which then gets the requests for every host name. */
  address: string | undefined
  /** The host name of the TLS handshake, normalized; undefined or empty if there is none. */
  serverName?: string | undefined
}

/** An HTTP/1 connection of a client. Requests are handled one after another; pipelined ones wait. */
export class ClientConnection implements ExchangeClient {
  readonly peer: Peer
  readonly address: string | undefined
  private readonly serverName: string | undefined
  isClosing = false
  private readonly socket: Duplex
  private readonly context: HttpContext
  private readonly buffer = new RequestBuffer()
  private state: 'idle' | 'head' | 'request' | 'lingering' = 'idle'
  private exchange: Exchange | undefined
  private isReading = false
  /** When the connection is closed unless something happens. */
  private deadline: number
  /** The idle timeout of the port or of a new connection; undefined means the default. */
  private idleTimeoutMs: number | undefined = firstRequestTimeoutMs
  private headStartedAt = 0

  constructor(socket: Duplex, context: HttpContext, { peer, address, serverName }: ClientOrigin) {
    this.socket = socket
    this.context = context
    this.peer = peer
    this.address = address
    this.serverName = serverName
    this.deadline = Date.now() + firstRequestTimeoutMs
    socket.on('data', (bytes) => this.onData(bytes))
    socket.on('drain', () => this.onDrain())
    socket.on('end', () => this.onEnd())
    socket.on('error', () => {}) // a close event follows
    socket.on('close', () => this.exchange?.onClientClose())
  }

  onData(bytes: Buffer): void {
    if (this.state === 'lingering') return
    const { exchange } = this
    if (!exchange) {
      this.buffer.append(bytes)
      this.readRequests()
      return
    }
    this.touch()
    const rest = exchange.onClientData(bytes)
    if (rest) this.hold(rest)
  }

  private onDrain(): void {
    if (!this.exchange) return
    this.touch()
    this.exchange.onClientDrain()
  }

  private onEnd(): void {
    if (this.exchange) this.exchange.onClientEnd()
    else this.socket.end()
  }

  /** Keeps bytes of the next request, and stops reading until the current one is finished. */
  private hold(rest: Buffer): void {
    this.buffer.append(rest)
    this.socket.pause()
  }

  private readRequests(): void {
    // A request that is refused at once finishes inside the loop, which then continues by itself.
    if (this.isReading) return
    this.isReading = true
    let hasHead = true
    while (hasHead && !this.buffer.isEmpty && !this.exchange && this.state !== 'lingering') {
      hasHead = this.readRequest()
    }
    this.isReading = false
  }

  /** Returns false when more bytes are needed. */
  private readRequest(): boolean {
    try {
      const head = this.buffer.takeHead()
      if (head === undefined) {
        this.awaitHead()
        return false
      }
      this.state = 'request'
      this.limitIdle(undefined)
      this.begin(readRequestHead(head))
    } catch (error) {
      if (!(error instanceof BadMessage)) throw error
      this.refuseMessage(error)
    }
    return true
  }

  private awaitHead(): void {
    // The timeout counts from the first byte, so that sending slowly does not extend it.
    if (this.state === 'idle') this.headStartedAt = Date.now()
    this.state = 'head'
    this.socket.resume()
  }

  private begin(head: RequestHead): void {
    const { context } = this
    if (head.minor === 0) head.keepAlive = false
    const id = context.nextId()
    const route = this.findRoute(head.host)
    if (!route) {
      this.answerUnrouted(head, id)
      return
    }
    if (this.isMisdirected(head.host, route)) {
      this.refuseMisdirected(head, id)
      return
    }
    const exchange = new Exchange(this, context, { head, id }, (created) =>
      route.kind === 'app' ? new AppBackend(created, context, route) : new SandboxBackend(created, context, route),
    )
    this.exchange = exchange
    // The body is not read before an upstream can take it.
    if (head.body !== 0) this.socket.pause()
    exchange.start()
  }

  private findRoute(host: string): SandboxRoute | AppRoute | undefined {
    const { table } = this.context
    return this.address === undefined ? table.find(host) : table.apps.findAddress(this.address)
  }

  /**
   * True if the TLS connection was opened for a host name of another organization. Browsers reuse a connection for every
   * name that its certificate covers, and open another one when they get status 421.
   */
  private isMisdirected(host: string, route: SandboxRoute | AppRoute): boolean {
    if (!this.serverName || this.serverName === host || this.address !== undefined) return false
    const asked = this.context.table.find(this.serverName)
    return asked !== undefined && asked.orgId !== route.orgId
  }

  private refuseMisdirected(head: RequestHead, id: string): void {
    const options = this.answerOptions(head, id)
    const message = `this connection was opened for ${this.serverName}; open another one for ${head.host}`
    this.answer(refusalText(new Refusal(421, 'misdirected_request', message), options), options.keepAlive)
  }

  private answerOptions(head: RequestHead, id: string): AnswerOptions {
    const keepAlive = head.keepAlive && head.body === 0 && !this.isClosing
    return { id, keepAlive, withoutBody: head.method === 'HEAD' }
  }

  private answerUnrouted(head: RequestHead, id: string): void {
    const { table, domains } = this.context
    const options = this.answerOptions(head, id)
    const { keepAlive } = options
    const isForEdge = !domains.some((domain) => head.host.endsWith(`.${domain}`))
    if (isForEdge && head.target === '/healthz') {
      this.answer(answerText(200, { status: 'ok', routes: table.size }, '', options), keepAlive)
      return
    }
    const refusal = table.isFilled
      ? new Refusal(404, 'not_found', `nothing is known as ${head.host || 'no host'}`)
      : new Refusal(503, 'unavailable', 'the routes are not loaded yet; try again shortly')
    this.answer(refusalText(refusal, options), keepAlive)
  }

  private answer(text: string, keepAlive: boolean): void {
    this.socket.write(text)
    this.afterResponse(keepAlive)
  }

  private refuseMessage(error: BadMessage): void {
    this.buffer.take()
    const options = { id: this.context.nextId(), keepAlive: false, withoutBody: false }
    this.answer(refusalText(refuseMessage(error), options), false)
  }

  /** Ends an exchange and goes on with the next request. */
  finish(exchange: Exchange, keepAlive: boolean): void {
    if (this.exchange !== exchange) return
    this.exchange = undefined
    this.afterResponse(keepAlive)
    this.readRequests()
  }

  refuse(exchange: Exchange, refusal: Refusal, mayKeepAlive: boolean): void {
    if (this.exchange !== exchange) return
    const keepAlive = mayKeepAlive && !this.isClosing
    const withoutBody = exchange.head.method === 'HEAD'
    this.socket.write(refusalText(refusal, { id: exchange.id, keepAlive, withoutBody }))
    this.finish(exchange, keepAlive)
  }

  private afterResponse(keepAlive: boolean): void {
    if (keepAlive && !this.isClosing) {
      this.state = 'idle'
      this.deadline = Date.now() + (this.idleTimeoutMs ?? keepAliveTimeoutMs)
      if (this.socket.isPaused()) this.socket.resume()
      return
    }
    // Closing at once would reset the connection if the client is still sending, and the response would be lost.
    this.state = 'lingering'
    this.buffer.take()
    this.deadline = Date.now() + lingerMs
    this.socket.end()
    this.socket.resume()
  }

  release(): void {
    const pending = this.buffer.take()
    if (pending) {
      const rest = this.exchange?.onClientData(pending)
      if (rest) this.hold(rest)
    }
    if (this.buffer.isEmpty) this.socket.resume()
  }

  touch(): void {
    this.deadline = Date.now() + (this.idleTimeoutMs ?? streamTimeoutMs)
  }

  /** Sets the idle timeout from now on; undefined means the default. */
  limitIdle(timeoutMs: number | undefined): void {
    this.idleTimeoutMs = timeoutMs
    this.touch()
  }

  write(text: string): void {
    this.socket.write(text, 'latin1')
  }

  writeBody(bytes: Buffer, isChunked: boolean): boolean {
    return writeBody(this.socket, isChunked, bytes)
  }

  cork(): void {
    this.socket.cork()
  }

  uncork(): void {
    this.socket.uncork()
  }

  pause(): void {
    this.socket.pause()
  }

  resume(): void {
    if (this.buffer.isEmpty) this.socket.resume()
  }

  end(): void {
    this.socket.end()
  }

  destroy(): void {
    this.socket.destroy()
  }

  /** Enforces the timeouts; called once a second. */
  sweep(now: number): void {
    const idleSince = this.deadline - (this.idleTimeoutMs ?? keepAliveTimeoutMs)
    if (this.isClosing && this.state === 'idle' && now > idleSince + drainIdleMs) this.socket.end()
    if (this.state === 'head') {
      if (now < this.headStartedAt + this.headTimeoutMs()) return
      this.refuseMessage(new BadMessage('the request did not arrive in time', 408))
    } else if (now >= this.deadline) this.destroy()
  }

  /** The head timeout of the port, which is known once the Host field has arrived. */
  private headTimeoutMs(): number {
    const { peer, context } = this
    const route = this.findRoute(this.buffer.peekHost() ?? '')
    const port = route?.kind === 'app' ? findPort(route, peer.port, peer.secure, context.edgePort) : undefined
    return port?.headTimeoutMs ?? defaultHeadTimeoutMs
  }

  /** Closes the connection after the next response. */
  drain(): void {
    this.isClosing = true
  }
}
