// HTTP/2 between clients and the edge. Each stream becomes an HTTP/1 connection inside this process, so that requests are
// handled by one implementation. This costs more than serving HTTP/1.
import { type ClientRequest, request as httpRequest, type IncomingMessage } from 'node:http'
import {
  constants,
  type IncomingHttpHeaders,
  performServerHandshake,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2'
import { type Duplex, duplexPair } from 'node:stream'
import type { TLSSocket } from 'node:tls'
import { forwardedHeaders } from './http2-headers.ts'

const settings = { maxConcurrentStreams: 100, enablePush: false, maxHeaderListSize: 32_768 }
const defaultIdleTimeoutMs = 75_000

/** Calls `serve` with an HTTP/1 connection for each request. */
export function serveHttp2(
  socket: TLSSocket,
  serve: (connection: Duplex) => void,
  idleTimeoutMs = defaultIdleTimeoutMs,
): ServerHttp2Session {
  const session = performServerHandshake(socket, { settings, maxSessionMemory: 16 })
  session.setTimeout(idleTimeoutMs, () => session.close())
  session.on('error', () => session.destroy())
  session.on('stream', (stream: ServerHttp2Stream, headers: IncomingHttpHeaders, flags: number) => {
    stream.on('error', () => {})
    const [near, far] = duplexPair()
    far.on('error', () => {})
    stream.on('close', () => far.destroy())
    serve(far)
    const hasBody = (flags & constants.NGHTTP2_FLAG_END_STREAM) === 0
    forward(stream, headers, hasBody, near)
  })
  return session
}

function forward(stream: ServerHttp2Stream, headers: IncomingHttpHeaders, hasBody: boolean, near: Duplex): void {
  near.on('error', () => {})
  const request = openRequest(headers, near)
  if (!request) {
    near.destroy()
    stream.respond({ ':status': 400 }, { endStream: true })
    return
  }
  request.on('error', () => fail(stream))
  request.on('information', ({ statusCode, headers: early }) => {
    if (statusCode === 103 && !stream.headersSent)
      stream.additionalHeaders({ ...forwardedHeaders(early), ':status': 103 })
  })
  request.on('response', (response) => respond(stream, response))
  stream.on('close', () => near.destroy())
  if (hasBody) {
    // The client may wait for a response before it sends the body.
    request.flushHeaders()
    stream.pipe(request)
  } else request.end()
}

/** Undefined for a request that has no equivalent in HTTP/1. */
function openRequest(headers: IncomingHttpHeaders, near: Duplex): ClientRequest | undefined {
  const { ':method': method, ':path': path, ':authority': authority, host } = headers
  // The program would see one of them, and the route may have been chosen by the other.
  if (authority !== undefined && host !== undefined && authority.toLowerCase() !== host.toLowerCase()) return undefined
  try {
    return httpRequest({
      createConnection: () => near,
      method,
      path,
      setHost: false,
      headers: { ...forwardedHeaders(headers), host: authority ?? host ?? '' },
    })
  } catch {
    return undefined // a field contains characters that HTTP/1 does not allow
  }
}

function respond(stream: ServerHttp2Stream, response: IncomingMessage): void {
  if (stream.destroyed) return
  const headers = { ...forwardedHeaders(response.headers), ':status': response.statusCode! }
  if (response.headers['content-length'] === '0') {
    response.resume()
    stream.respond(headers, { endStream: true })
    return
  }
  stream.respond(headers, { waitForTrailers: true })
  stream.on('wantTrailers', () => stream.sendTrailers(response.trailers as Record<string, string>))
  response.on('error', () => stream.close(constants.NGHTTP2_INTERNAL_ERROR))
  response.on('aborted', () => stream.close(constants.NGHTTP2_INTERNAL_ERROR))
  response.pipe(stream)
}

function fail(stream: ServerHttp2Stream): void {
  if (stream.destroyed) return
  if (stream.headersSent) stream.close(constants.NGHTTP2_INTERNAL_ERROR)
  else {
    stream.respond({ ':status': 502 })
    stream.end()
  }
}
