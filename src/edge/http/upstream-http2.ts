// HTTP/2 to programs that ask for it. A request is written as HTTP/1 into one end of a stream inside of this process and
// goes out as HTTP/2 at the other, so that everything else exists once.
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type ClientHttp2Session, connect, constants, type IncomingHttpHeaders } from 'node:http2'
import type { Socket } from 'node:net'
import { type Duplex, duplexPair } from 'node:stream'
import type { Place } from '../types.ts'
import { headersOf } from './http2.ts'

/** A connection to a program, which carries many requests. */
interface Line {
  session: ClientHttp2Session
  socket: Socket
  /** Requests under way. */
  load: number
  idleSince: number
}

const maxStreams = 100
const idleMillis = 30_000
const greetingMillis = 1_000
// As large as the edge lets heads become.
const maxHeadBytes = 65_536
const settings = { enablePush: false, maxHeaderListSize: maxHeadBytes }

export class Http2Upstreams {
  private readonly dial: (place: Place) => Promise<Socket>
  private readonly lines = new Map<string, Line[]>()
  private readonly dialing = new Map<string, Promise<Line>>()
  /** Where what is written into a stream goes. */
  private readonly places = new WeakMap<object, Place>()
  /** It never listens: it reads what is written into the streams. */
  private readonly server = createServer({ maxHeaderSize: maxHeadBytes }, (request, reply) => {
    this.pass(request, reply).catch(() => request.socket.destroy())
  })

  constructor(dial: (place: Place) => Promise<Socket>) {
    this.dial = dial
  }

  /** A stream for one request in the form of HTTP/1. */
  async connect(place: Place): Promise<Duplex> {
    if (!this.lines.get(place.key)?.some(isOpen)) await this.open(place)
    const [near, far] = duplexPair()
    near.on('close', () => far.destroy())
    far.on('close', () => near.destroy())
    far.on('error', () => {})
    this.places.set(far, place)
    this.server.emit('connection', far)
    return near
  }

  /** All that wait for one wait together. */
  private open(place: Place): Promise<Line> {
    const before = this.dialing.get(place.key)
    if (before) return before
    const dialing = this.dial(place)
      .then((socket) => this.add(place.key, socket))
      .finally(() => this.dialing.delete(place.key))
    this.dialing.set(place.key, dialing)
    return dialing
  }

  private async add(key: string, socket: Socket): Promise<Line> {
    socket.allowHalfOpen = false // a program that says no more hears no more
    const session = connect('http://program', { createConnection: () => socket, settings })
    const line: Line = { session, socket, load: 0, idleSince: Date.now() }
    session.on('error', () => {}) // what follows it is the close
    session.on('close', () => this.remove(key, line))
    await greeting(session)
    if (isOpen(line)) this.lines.set(key, [...(this.lines.get(key) ?? []), line])
    return line
  }

  private findLine({ key }: Place): Line | undefined {
    return this.lines.get(key)?.find(hasRoom)
  }

  private remove(key: string, line: Line): void {
    const rest = this.lines.get(key)?.filter((each) => each !== line) ?? []
    if (rest.length === 0) this.lines.delete(key)
    else this.lines.set(key, rest)
  }

  private async pass(request: IncomingMessage, reply: ServerResponse): Promise<void> {
    const far = request.socket
    const place = this.places.get(far)!
    let line = this.findLine(place)
    // Others may be faster to take the room that a new one has.
    for (; !line; line = this.findLine(place)) {
      const opened = await this.open(place)
      if (!isOpen(opened) || mostOf(opened) === 0) throw new Error('the program takes no requests over HTTP/2')
    }
    if (far.destroyed) return
    const hasBody = 'transfer-encoding' in request.headers || Number(request.headers['content-length'] ?? 0) > 0
    const stream = line.session.request(requestHeaders(request), { endStream: !hasBody })
    line.load += 1
    stream.on('close', () => {
      line.load -= 1
      line.idleSince = Date.now()
      if (!reply.writableEnded) far.destroy()
    })
    stream.on('error', () => far.destroy())
    stream.on('trailers', (trailers) => reply.addTrailers(headersOf(trailers)))
    far.on('close', () => {
      stream.close(constants.NGHTTP2_CANCEL)
      stream.destroy() // also when something of it is left that nobody reads
    })
    if (hasBody) request.pipe(stream)
    const [headers, flags] = (await once(stream, 'response')) as [IncomingHttpHeaders, number]
    respond(request, reply, headers, (flags & constants.NGHTTP2_FLAG_END_STREAM) !== 0)
    stream.pipe(reply)
  }

  /** Ends what nobody has used for a while, and what `isWanted` does not know, as soon as its requests are over. */
  sweep(now: number, isWanted: (key: string) => boolean): void {
    for (const [key, lines] of this.lines) {
      for (const { session, socket, load, idleSince } of lines) {
        // The program need not close its side, and nothing more is to come from there.
        if (session.destroyed) socket.destroy()
        else if (!isWanted(key) || (load === 0 && now - idleSince >= idleMillis)) session.close()
      }
    }
  }
}

/** The program says first how many requests it takes at once; one that says nothing is asked all the same. */
function greeting(session: ClientHttp2Session): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  const timer = setTimeout(resolve, greetingMillis)
  session.once('remoteSettings', resolve)
  session.once('close', resolve)
  return promise.finally(() => clearTimeout(timer))
}

function isOpen({ session }: Line): boolean {
  return !session.closed && !session.destroyed
}

function mostOf({ session }: Line): number {
  return Math.min(session.remoteSettings.maxConcurrentStreams ?? maxStreams, maxStreams)
}

function hasRoom(line: Line): boolean {
  return isOpen(line) && line.load < mostOf(line)
}

function requestHeaders({ method, url, headers }: IncomingMessage): Record<string, string | string[]> {
  const { host = '', expect: _answered, ...kept } = headersOf(headers)
  // Some programs answer only those who say that they read to the very end.
  return { ':method': method!, ':path': url!, ':scheme': 'http', ':authority': host, ...kept, te: 'trailers' }
}

function respond(
  request: IncomingMessage,
  reply: ServerResponse,
  headers: IncomingHttpHeaders,
  isWhole: boolean,
): void {
  const status = headers[':status'] as unknown as number
  const { trailer: _promised, ...kept } = headersOf(headers)
  // That nothing follows its head is part of what an answer says.
  const isEmpty = isWhole && request.method !== 'HEAD' && status !== 204 && status !== 304
  reply.sendDate = false
  reply.shouldKeepAlive = false
  reply.writeHead(status, isEmpty ? { ...kept, 'content-length': '0' } : kept)
  reply.flushHeaders()
}
