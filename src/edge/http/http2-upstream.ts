// HTTP/2 between the edge and programs. A request is written as HTTP/1 into a stream inside this process and leaves it as
// HTTP/2, so that exchanges handle one protocol only.
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type ClientHttp2Session, connect, constants, type IncomingHttpHeaders } from 'node:http2'
import type { Socket } from 'node:net'
import { type Duplex, duplexPair } from 'node:stream'
import { Upstream } from '../tcp/upstream.ts'
import type { Endpoint } from '../types.ts'
import { forwardedHeaders } from './http2-headers.ts'

/** An HTTP/2 connection to a program, which carries many requests. */
interface Connection {
  session: ClientHttp2Session
  socket: Socket
  /** Requests in progress. */
  load: number
  idleSince: number
}

const maxStreams = 100
const idleTimeoutMs = 30_000
const settingsTimeoutMs = 1_000
// Equal to the limit for response heads of HTTP/1.
const maxHeadBytes = 65_536
const settings = { enablePush: false, maxHeaderListSize: maxHeadBytes }

export class Http2Upstreams {
  private readonly dial: (endpoint: Endpoint) => Promise<Socket>
  private readonly connections = new Map<string, Connection[]>()
  private readonly dialing = new Map<string, Promise<Connection>>()
  /** The targets of the streams inside this process. */
  private readonly endpoints = new WeakMap<object, Endpoint>()
  /** Parses the HTTP/1 requests that are written into the streams. It does not listen. */
  private readonly server = createServer({ maxHeaderSize: maxHeadBytes }, (request, response) => {
    this.forward(request, response).catch(() => request.socket.destroy())
  })

  constructor(dial: (endpoint: Endpoint) => Promise<Socket>) {
    this.dial = dial
  }

  /** Opens a stream that accepts one request in HTTP/1 form. */
  async connect(endpoint: Endpoint): Promise<Upstream> {
    if (!this.connections.get(endpoint.key)?.some(isOpen)) await this.open(endpoint)
    const [near, far] = duplexPair()
    near.on('close', () => far.destroy())
    far.on('close', () => near.destroy())
    far.on('error', () => {})
    this.endpoints.set(far, endpoint)
    this.server.emit('connection', far)
    return new Upstream<Duplex>(near, endpoint.key)
  }

  /** Requests that need a connection at the same time share one. */
  private open(endpoint: Endpoint): Promise<Connection> {
    const pending = this.dialing.get(endpoint.key)
    if (pending) return pending
    const dialing = this.dial(endpoint)
      .then((socket) => this.add(endpoint.key, socket))
      .finally(() => this.dialing.delete(endpoint.key))
    this.dialing.set(endpoint.key, dialing)
    return dialing
  }

  private async add(key: string, socket: Socket): Promise<Connection> {
    socket.allowHalfOpen = false // a half-closed connection is of no use to HTTP/2
    const session = connect('http://program', { createConnection: () => socket, settings })
    const connection: Connection = { session, socket, load: 0, idleSince: Date.now() }
    session.on('error', () => {}) // a close event follows
    session.on('close', () => this.remove(key, connection))
    await receiveSettings(session)
    if (isOpen(connection)) this.connections.set(key, [...(this.connections.get(key) ?? []), connection])
    return connection
  }

  private findConnection({ key }: Endpoint): Connection | undefined {
    return this.connections.get(key)?.find(hasCapacity)
  }

  private remove(key: string, connection: Connection): void {
    const rest = this.connections.get(key)?.filter((each) => each !== connection) ?? []
    if (rest.length === 0) this.connections.delete(key)
    else this.connections.set(key, rest)
  }

  private async forward(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const endpoint = this.endpoints.get(request.socket)!
    let connection = this.findConnection(endpoint)
    // Other requests may use up the capacity of a new connection first.
    for (; !connection; connection = this.findConnection(endpoint)) {
      const opened = await this.open(endpoint)
      if (!isOpen(opened) || streamLimit(opened) === 0) throw new Error('the program accepts no requests over HTTP/2')
    }
    if (!request.socket.destroyed) await forwardOver(connection, request, response)
  }

  /** Closes idle connections and those whose target no longer exists; requests in progress may finish. */
  sweep(now: number, exists: (key: string) => boolean): void {
    for (const [key, connections] of this.connections) {
      for (const { session, socket, load, idleSince } of connections) {
        // The program may keep its side open after the session has ended.
        if (session.destroyed) socket.destroy()
        else if (!exists(key) || (load === 0 && now - idleSince >= idleTimeoutMs)) session.close()
      }
    }
  }
}

async function forwardOver(connection: Connection, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { socket, headers: given } = request
  const hasBody = 'transfer-encoding' in given || Number(given['content-length'] ?? 0) > 0
  const stream = connection.session.request(requestHeaders(request), { endStream: !hasBody })
  connection.load += 1
  stream.on('close', () => {
    connection.load -= 1
    connection.idleSince = Date.now()
    if (!response.writableEnded) socket.destroy()
  })
  stream.on('error', () => socket.destroy())
  stream.on('trailers', (trailers) => response.addTrailers(forwardedHeaders(trailers)))
  socket.on('close', () => {
    stream.close(constants.NGHTTP2_CANCEL)
    stream.destroy() // otherwise unread data would keep it open
  })
  if (hasBody) request.pipe(stream)
  const [headers, flags] = (await once(stream, 'response')) as [IncomingHttpHeaders, number]
  writeHead(request, response, headers, (flags & constants.NGHTTP2_FLAG_END_STREAM) !== 0)
  stream.pipe(response)
}

/** Waits for the settings of the program, which limit the number of streams. Without them the defaults apply. */
function receiveSettings(session: ClientHttp2Session): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  const timer = setTimeout(resolve, settingsTimeoutMs)
  session.once('remoteSettings', resolve)
  session.once('close', resolve)
  return promise.finally(() => clearTimeout(timer))
}

function isOpen({ session }: Connection): boolean {
  return !session.closed && !session.destroyed
}

function streamLimit({ session }: Connection): number {
  return Math.min(session.remoteSettings.maxConcurrentStreams ?? maxStreams, maxStreams)
}

function hasCapacity(connection: Connection): boolean {
  return isOpen(connection) && connection.load < streamLimit(connection)
}

function requestHeaders({ method, url, headers }: IncomingMessage): Record<string, string | string[]> {
  const { host = '', expect: _answered, ...kept } = forwardedHeaders(headers)
  // gRPC servers require `te: trailers`.
  return { ':method': method!, ':path': url!, ':scheme': 'http', ':authority': host, ...kept, te: 'trailers' }
}

function writeHead(
  request: IncomingMessage,
  response: ServerResponse,
  headers: IncomingHttpHeaders,
  isComplete: boolean,
): void {
  const status = headers[':status'] as unknown as number
  const { trailer: _promised, ...kept } = forwardedHeaders(headers)
  // An HTTP/2 response without a body needs a Content-Length in HTTP/1.
  const isEmpty = isComplete && request.method !== 'HEAD' && status !== 204 && status !== 304
  response.sendDate = false
  response.shouldKeepAlive = false
  response.writeHead(status, isEmpty ? { ...kept, 'content-length': '0' } : kept)
  response.flushHeaders()
}
