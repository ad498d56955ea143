// HTTP/2 for clients. Each of its streams becomes a connection of HTTP/1 inside of this process, so that everything else
// exists once. It costs more than HTTP/1 does, which is the price of that.
import { request as httpRequest, type IncomingHttpHeaders, type IncomingMessage } from 'node:http'
import {
  constants,
  type IncomingHttpHeaders as Http2Headers,
  performServerHandshake,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2'
import { type Duplex, duplexPair } from 'node:stream'
import type { TLSSocket } from 'node:tls'

const hop = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
  'te',
])
const settings = { maxConcurrentStreams: 100, enablePush: false, maxHeaderListSize: 32_768 }
const defaultIdleMillis = 75_000

/** `serve` gets connections of HTTP/1. */
export function serveHttp2(
  socket: TLSSocket,
  serve: (inner: Duplex) => void,
  idleMillis = defaultIdleMillis,
): ServerHttp2Session {
  const session = performServerHandshake(socket, { settings, maxSessionMemory: 16 })
  session.setTimeout(idleMillis, () => session.close())
  session.on('error', () => session.destroy())
  session.on('stream', (stream: ServerHttp2Stream, headers: Http2Headers, flags: number) => {
    stream.on('error', () => {})
    const [near, far] = duplexPair()
    far.on('error', () => {})
    stream.on('close', () => far.destroy()) // nobody waits any more
    serve(far)
    pass(stream, headers, (flags & constants.NGHTTP2_FLAG_END_STREAM) !== 0, near)
  })
  return session
}

function pass(stream: ServerHttp2Stream, headers: Http2Headers, isWhole: boolean, near: Duplex): void {
  near.on('error', () => {})
  const call = httpRequest({
    createConnection: () => near,
    method: headers[':method'],
    path: headers[':path'],
    setHost: false,
    headers: requestHeaders(headers),
  })
  call.on('error', () => fail(stream))
  call.on('information', ({ statusCode, headers: early }) => {
    if (statusCode === 103 && !stream.headersSent) stream.additionalHeaders({ ...headersOf(early), ':status': 103 })
  })
  call.on('response', (answer) => respond(stream, answer))
  stream.on('close', () => near.destroy())
  if (isWhole) call.end()
  else {
    // Whoever asks may wait for an answer before it says more.
    call.flushHeaders()
    stream.pipe(call)
  }
}

function respond(stream: ServerHttp2Stream, answer: IncomingMessage): void {
  if (stream.destroyed) return
  const headers = { ...headersOf(answer.headers), ':status': answer.statusCode! }
  if (answer.headers['content-length'] === '0') {
    answer.resume()
    stream.respond(headers, { endStream: true })
    return
  }
  stream.respond(headers, { waitForTrailers: true })
  stream.on('wantTrailers', () => stream.sendTrailers(answer.trailers as Record<string, string>))
  answer.on('error', () => stream.close(constants.NGHTTP2_INTERNAL_ERROR))
  answer.on('aborted', () => stream.close(constants.NGHTTP2_INTERNAL_ERROR))
  answer.pipe(stream)
}

function fail(stream: ServerHttp2Stream): void {
  if (stream.destroyed) return
  if (stream.headersSent) stream.close(constants.NGHTTP2_INTERNAL_ERROR)
  else {
    stream.respond({ ':status': 502 })
    stream.end()
  }
}

function requestHeaders(headers: Http2Headers): Record<string, string | string[]> {
  return { ...headersOf(headers), host: headers[':authority'] ?? headers.host ?? '' }
}

/** Those that one version of HTTP passes on to the other. */
export function headersOf(headers: IncomingHttpHeaders | Http2Headers): Record<string, string | string[]> {
  const kept: Record<string, string | string[]> = {}
  for (const [name, value] of Object.entries(headers)) {
    if (!name.startsWith(':') && !hop.has(name) && value !== undefined) kept[name] = value
  }
  return kept
}
