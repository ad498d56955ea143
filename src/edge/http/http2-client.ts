// HTTP/2 between clients and the edge. Each stream becomes an HTTP/1 connection inside this process, so that requests are
// handled by one implementation. This costs more than serving HTTP/1.
import { type ClientRequest, request as httpRequest, type IncomingMessage, type OutgoingHttpHeaders } from 'node:http'
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
import { initialWindowBytes, type UploadWindows } from './upload-windows.ts'

const settings = {
  maxConcurrentStreams: 100,
  enablePush: false,
  maxHeaderListSize: 32_768,
  initialWindowSize: initialWindowBytes,
}
const defaultIdleTimeoutMs = 75_000
const withoutBody = new Set([204, 205, 304])

/** Calls `serve` with an HTTP/1 connection for each request. */
export function serveHttp2(
  socket: TLSSocket,
  serve: (connection: Duplex) => void,
  uploads: UploadWindows,
  idleTimeoutMs = defaultIdleTimeoutMs,
): ServerHttp2Session {
  const session = performServerHandshake(socket, { settings, maxSessionMemory: 16 })
  uploads.open(session)
  session.setTimeout(idleTimeoutMs, () => session.close())
  session.on('error', () => session.destroy())
  session.on('stream', (stream: ServerHttp2Stream, headers: IncomingHttpHeaders, flags: number) => {
    stream.on('error', () => {})
    const [near, far] = duplexPair()
    far.on('error', () => {})
    stream.on('close', () => far.destroy())
    serve(far)
    const hasBody = (flags & constants.NGHTTP2_FLAG_END_STREAM) === 0
    if (hasBody) uploads.add(session, stream)
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
  request.on('error', () => answer(stream, () => refuse(stream)))
  request.on('information', ({ statusCode, headers: early }) => {
    if (statusCode !== 103 || stream.headersSent) return
    answer(stream, () => stream.additionalHeaders({ ...forwardedHeaders(early), ':status': 103 }))
  })
  request.on('response', (response) => answer(stream, () => respond(stream, response)))
  stream.on('close', () => near.destroy())
  if (hasBody) sendBody(stream, request, near)
  else request.end()
}

/** A body that the client does not end must not look complete to the program. */
function sendBody(stream: ServerHttp2Stream, request: ClientRequest, near: Duplex): void {
  // The client may wait for a response before it sends the body.
  request.flushHeaders()
  stream.on('aborted', () => near.destroy())
  stream.on('trailers', (trailers) =>
    answer(stream, () => request.addTrailers(forwardedHeaders(trailers) as OutgoingHttpHeaders)),
  )
  stream.on('end', () => {
    if (stream.rstCode !== constants.NGHTTP2_NO_ERROR || stream.aborted || stream.destroyed) near.destroy()
    else request.end()
  })
  stream.pipe(request, { end: false })
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

/**
 * Runs `send` unless the client has reset the stream. Node.js throws for streams that are closed, and for responses that
 * cannot be sent over HTTP/2, such as those with a status of 600; these end the stream.
 */
function answer(stream: ServerHttp2Stream, send: () => void): void {
  if (stream.destroyed || stream.closed) return
  try {
    send()
  } catch {
    stream.close(constants.NGHTTP2_INTERNAL_ERROR)
  }
}

function respond(stream: ServerHttp2Stream, response: IncomingMessage): void {
  const status = response.statusCode!
  const headers = { ...forwardedHeaders(response.headers), ':status': status }
  if (response.headers['content-length'] === '0' || withoutBody.has(status)) {
    response.resume()
    stream.respond(headers, { endStream: true })
    return
  }
  stream.respond(headers, { waitForTrailers: true })
  stream.on('wantTrailers', () => answer(stream, () => stream.sendTrailers(response.trailers as OutgoingHttpHeaders)))
  response.on('error', () => stream.close(constants.NGHTTP2_INTERNAL_ERROR))
  response.on('aborted', () => stream.close(constants.NGHTTP2_INTERNAL_ERROR))
  response.pipe(stream)
}

function refuse(stream: ServerHttp2Stream): void {
  if (stream.headersSent) stream.close(constants.NGHTTP2_INTERNAL_ERROR)
  else stream.respond({ ':status': 502 }, { endStream: true })
}
