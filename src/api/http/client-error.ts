// Errors that the HTTP server finds before there is a request: malformed bytes, oversized headers, slow clients.
import { randomUUID } from 'node:crypto'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { BerthError, badRequest } from '../../model/errors.ts'
import type { MethodTable } from './method-table.ts'
import type { ServerOptions } from './options.ts'
import { refuseConnection } from './raw-response.ts'

interface ClientError extends Error {
  code?: string
  /** The bytes that were being parsed, and how many of them were valid. */
  rawPacket?: unknown
  bytesParsed?: number
}

type OnClientError = (error: ClientError, socket: Socket) => void

/** Answers such errors like those of operations. They have no token to check: it may be in the part that was not read. */
export function clientErrorHandler({ area, log }: ServerOptions, methods: MethodTable): OnClientError {
  const refused = new WeakSet<Socket>()
  return (error, socket) => {
    // The parser reports further errors for bytes that arrive after the first one.
    if (refused.has(socket)) return
    refused.add(socket)
    const refusal = refusalOf(error, methods)
    const last = exchanges.get(socket)
    const isOpen = last !== undefined && !last.response.writableFinished
    if (!socket.writable || !refusal || (isOpen && last.response.headersSent && !last.request.complete)) {
      socket.destroy()
      return
    }
    const refuse = () => {
      const id = randomUUID()
      log.info({ request: id, status: refusal.statusCode, code: error.code }, 'request could not be read')
      refuseConnection(area, socket, id, refusal)
    }
    // The error is about the next request on this connection, so the response of the one before it comes first.
    if (isOpen && last.request.complete) last.response.once('finish', refuse)
    else refuse()
  }
}

function refusalOf(error: ClientError, methods: MethodTable): BerthError | undefined {
  switch (error.code) {
    case 'HPE_HEADER_OVERFLOW':
      return new BerthError('headers_too_large', 'the request line and the headers are larger than 512 KiB')
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return new BerthError('timeout', 'the request did not arrive in time')
    case 'HPE_INVALID_METHOD':
      return refuseMethod(error, methods)
    default:
      return error.code?.startsWith('HPE_') ? badRequest('the request is not valid HTTP') : undefined
  }
}

/** Reads the request line itself, because the parser stops at a method that it does not know. */
function refuseMethod({ rawPacket, bytesParsed = 0 }: ClientError, methods: MethodTable): BerthError {
  const text = Buffer.isBuffer(rawPacket) ? rawPacket.toString('latin1') : ''
  const line = text.slice(text.lastIndexOf('\n', bytesParsed - 1) + 1).split('\r\n', 1)[0]!
  const [, method, path] = /^([!#$%&'*+\-.^_`|~\w]{1,32}) (\/[^\s?#]*)\S* HTTP\/1\.[01]$/.exec(line) ?? []
  return method && path ? methods.refusalOf(method, path) : badRequest('the request is not valid HTTP')
}

interface Exchange {
  request: IncomingMessage
  response: ServerResponse
}

const exchanges = new WeakMap<Socket, Exchange>()

/** Remembers the latest request of each connection, so that an error is not written into the middle of a response. */
export function followExchanges(server: Server): void {
  server.prependListener('request', (request: IncomingMessage, response: ServerResponse) => {
    exchanges.set(request.socket, { request, response })
  })
}
