import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { isLoopback } from '../../model/network.ts'
import { type AppRoute, findPort } from '../routing/app.ts'
import type { Balance } from '../routing/balance.ts'
import type { Reach } from '../routing/reach.ts'
import type { ReplayCache } from '../routing/replay-cache.ts'
import type { Route, RouteTable } from '../routing/route.ts'
import type { Access } from './access.ts'
import { answerText, Refusal, refusalOfMessage, refusalText } from './answer.ts'
import { writeBody } from './body.ts'
import type { EncoderCount } from './compress.ts'
import type { Exchange } from './exchange.ts'
import { AppExchange } from './exchange-app.ts'
import { SandboxExchange } from './exchange-sandbox.ts'
import type { Peer } from './forward.ts'
import { BadMessage, type RequestHead, readRequestHead } from './message.ts'
import type { UpstreamPool } from './upstream.ts'

/** What connections are served with. */
export interface EdgeParts {
  table: RouteTable
  access: Access
  pool: UpstreamPool
  reach: Reach
  balance: Balance
  replays: ReplayCache
  /** The port that names lead to; others are of single apps. */
  edgePort: number
  /** Where this edge is. */
  region: string
  /** Bodies that may have to be sent again, of all requests together. */
  kept: { bytes: number; most: number }
  encoders: EncoderCount
  /** Names below these are sandboxes or apps, and no other host name is. */
  domains: string[]
  nextId(): string
  onError(error: unknown): void
}

const endOfHead = Buffer.from('\r\n\r\n')
const lineFeed = 10
const carriageReturn = 13
const maxHeadBytes = 32_768

const firstRequestMillis = 15_000
const headMillis = 10_000
const keepMillis = 75_000
const streamMillis = 3_600_000
const lingerMillis = 2_000
// Of a connection that is to be closed.
const closeIdleMillis = 3_000

/** A socket, or one end of a stream inside of this process. */
export type ClientSocket = Duplex

/** A connection of a client: one request after the other, each answered before the next is read. */
export class ClientConnection {
  readonly peer: Peer
  /** The next answer is the last. */
  isClosing = false
  /** When it is given up, if nothing happens. */
  deadline: number
  /** After how long, where the port of its last request says so. */
  private idleMillis: number | undefined = firstRequestMillis
  private headSince = 0
  private readonly socket: ClientSocket
  private readonly parts: EdgeParts
  /** It came to an address that is of one app alone, whatever host it asks for. */
  readonly address: string | undefined
  private pending: Buffer | undefined
  private exchange: Exchange | undefined
  private isReading = false
  private state: 'idle' | 'head' | 'request' | 'lingering' = 'idle'

  constructor(socket: ClientSocket, parts: EdgeParts, peer: Peer, address: string | undefined) {
    this.socket = socket
    this.parts = parts
    this.peer = peer
    this.address = address
    this.deadline = Date.now() + firstRequestMillis
    socket.on('data', (bytes) => this.onData(bytes))
    socket.on('drain', () => this.onDrain())
    socket.on('end', () => this.onEnd())
    socket.on('error', () => {}) // what follows it is the close
    socket.on('close', () => this.exchange?.onClientClose())
  }

  onData(bytes: Buffer): void {
    if (this.state === 'lingering') return
    const { exchange } = this
    if (!exchange) {
      this.pending = this.pending ? Buffer.concat([this.pending, bytes]) : bytes
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

  /** What belongs to the next request waits, and the client with it. */
  private hold(rest: Buffer): void {
    this.pending = this.pending ? Buffer.concat([this.pending, rest]) : rest
    this.socket.pause()
  }

  private onEnd(): void {
    if (this.exchange) this.exchange.onClientEnd()
    else this.socket.end()
  }

  private readRequests(): void {
    // What is refused at once ends inside of the loop, which then goes on by itself.
    if (this.isReading) return
    this.isReading = true
    let hasHead = true
    while (hasHead && this.pending && !this.exchange && this.state !== 'lingering') {
      hasHead = this.readRequest(this.pending)
    }
    this.isReading = false
  }

  /** False when more has to arrive first. */
  private readRequest(bytes: Buffer): boolean {
    let start = 0
    // Some clients end a body with an empty line that is not part of it.
    while (bytes[start] === carriageReturn && bytes[start + 1] === lineFeed) start += 2
    const end = bytes.indexOf(endOfHead, start)
    if (end < 0 || end - start > maxHeadBytes) return this.awaitHead(bytes, start)
    this.pending = end + 4 < bytes.length ? bytes.subarray(end + 4) : undefined
    this.state = 'request'
    this.limitIdle(undefined)
    try {
      this.begin(readRequestHead(bytes.toString('latin1', start, end)))
    } catch (error) {
      if (!(error instanceof BadMessage)) throw error
      this.refuseMessage(error)
    }
    return true
  }

  private awaitHead(bytes: Buffer, start: number): boolean {
    if (bytes.length - start > maxHeadBytes) {
      this.refuseMessage(new BadMessage(`the head of a request may have ${maxHeadBytes} bytes`, 431))
    } else if (hasBareLineFeed(bytes)) {
      this.refuseMessage(new BadMessage('lines end with a carriage return and a line feed'))
    } else {
      // Counted from its first byte: one that trickles in does not get longer.
      if (this.state === 'idle') this.headSince = Date.now()
      this.state = 'head'
      this.socket.resume()
    }
    return false
  }

  private begin(head: RequestHead): void {
    if (head.minor === 0) head.keepAlive = false
    const id = this.parts.nextId()
    const route = this.findRoute(head.host)
    if (!route) {
      this.answerUnrouted(head, id)
      return
    }
    const exchange =
      route.kind === 'app'
        ? new AppExchange(this, this.parts, head, route, id)
        : new SandboxExchange(this, this.parts, head, route, id)
    this.exchange = exchange
    // Nothing of a body is read before there is somewhere to put it.
    if (head.body !== 0) this.socket.pause()
    exchange.start()
  }

  private findRoute(host: string): Route | AppRoute | undefined {
    const { table } = this.parts
    return this.address === undefined ? table.find(host) : table.apps.findAddress(this.address)
  }

  private answerUnrouted(head: RequestHead, id: string): void {
    const keepAlive = head.keepAlive && head.body === 0 && !this.isClosing
    const options = { id, keepAlive, withoutBody: head.method === 'HEAD' }
    const isOwn = !this.parts.domains.some((domain) => head.host.endsWith(`.${domain}`))
    if (isOwn && head.target === '/healthz') {
      this.answer(answerText(200, { status: 'ok', routes: this.parts.table.size }, '', options), keepAlive)
      return
    }
    const refusal = this.parts.table.isFilled
      ? new Refusal(404, 'not_found', `nothing is known as ${head.host || 'no host'}`)
      : new Refusal(503, 'unavailable', 'the routes are not known yet; try again shortly')
    this.answer(refusalText(refusal, options), keepAlive)
  }

  private answer(text: string, keepAlive: boolean): void {
    this.socket.write(text)
    this.continue(keepAlive)
  }

  private refuseMessage({ status, message }: BadMessage): void {
    this.pending = undefined
    const options = { id: this.parts.nextId(), keepAlive: false, withoutBody: false }
    this.answer(refusalText(refusalOfMessage(status, message), options), false)
  }

  /** The exchange is over; after it comes the next request, or the end. */
  finish(exchange: Exchange, keepAlive: boolean): void {
    if (this.exchange !== exchange) return
    this.exchange = undefined
    this.continue(keepAlive)
    this.readRequests()
  }

  refuse(exchange: Exchange, refusal: Refusal, keepAlive: boolean): void {
    if (this.exchange !== exchange) return
    const stays = keepAlive && !this.isClosing
    const withoutBody = exchange.head.method === 'HEAD'
    this.socket.write(refusalText(refusal, { id: exchange.id, keepAlive: stays, withoutBody }))
    this.finish(exchange, stays)
  }

  private continue(keepAlive: boolean): void {
    if (keepAlive && !this.isClosing) {
      this.state = 'idle'
      this.deadline = Date.now() + (this.idleMillis ?? keepMillis)
      if (this.socket.isPaused()) this.socket.resume()
      return
    }
    // A client that is still sending would lose the answer if the connection were simply closed.
    this.state = 'lingering'
    this.pending = undefined
    this.deadline = Date.now() + lingerMillis
    this.socket.end()
    this.socket.resume()
  }

  /** The upstream is there: what has waited is for it. */
  release(): void {
    const { pending } = this
    this.pending = undefined
    if (pending) {
      const rest = this.exchange?.onClientData(pending)
      if (rest) this.hold(rest)
    }
    if (!this.pending) this.socket.resume()
  }

  touch(): void {
    this.deadline = Date.now() + (this.idleMillis ?? streamMillis)
  }

  /** From now on it is given up when nothing moves for so long; undefined: for as long as usual. */
  limitIdle(millis: number | undefined): void {
    this.idleMillis = millis
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
    if (!this.pending) this.socket.resume()
  }

  end(): void {
    this.socket.end()
  }

  destroy(): void {
    this.socket.destroy()
  }

  /** Called once a second. */
  sweep(now: number): void {
    const idleSince = this.deadline - (this.idleMillis ?? keepMillis)
    if (this.isClosing && this.state === 'idle' && now > idleSince + closeIdleMillis) this.socket.end()
    if (this.state === 'head') {
      if (now < this.headSince + this.mostHeadMillis()) return
      this.refuseMessage(new BadMessage('the request did not arrive in time', 408))
    } else if (now >= this.deadline) this.destroy()
  }

  /** How long a head may take of which a part is here: as its port says, as soon as it tells which one that is. */
  private mostHeadMillis(): number {
    const { peer, parts } = this
    const host = this.pending && hostLine.exec(this.pending.toString('latin1'))?.[1]
    const route = this.findRoute(host?.toLowerCase() ?? '')
    const port = route?.kind === 'app' ? findPort(route, peer.port, peer.secure, parts.edgePort) : undefined
    return port?.headMillis ?? headMillis
  }

  /** The next answer is the last. It is not cut off at once: the request may be on its way already. */
  drain(): void {
    this.isClosing = true
  }
}

const hostLine = /\r\nhost:[\t ]*([^\s:]+)(?::\d+)?[\t ]*\r\n/i

/** A line that ends without a carriage return: no end of the head would ever be found. */
function hasBareLineFeed(bytes: Buffer): boolean {
  for (let at = bytes.indexOf(lineFeed); at >= 0; at = bytes.indexOf(lineFeed, at + 1)) {
    if (bytes[at - 1] !== carriageReturn) return true
  }
  return false
}

export function peerOf(socket: Socket, secure: boolean): Peer {
  const address = (socket.remoteAddress ?? '').replace(/^::ffff:/, '')
  const trusted = isLoopback(address)
  const { localPort = 0, remotePort = 0 } = socket
  return { address: address || 'unknown', secure, port: localPort, remotePort, trusted }
}
