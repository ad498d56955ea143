// WebSockets of an API listener. An error before the upgrade is an ordinary HTTP response, so that clients can show it.
import { randomUUID } from 'node:crypto'
import { type IncomingMessage, STATUS_CODES } from 'node:http'
import type { Duplex } from 'node:stream'
import type { FastifyInstance } from 'fastify'
import { type WebSocket, WebSocketServer } from 'ws'
import { badRequest, notFound } from '../../model/errors.ts'
import { readTokenHash } from './auth.ts'
import { commonHeaders, type ServerOptions } from './options.ts'
import { asBerthError, problemBody, problemHeaders } from './problem.ts'
import { type OpenSocket, readSearch, type SocketRoute, withAliases } from './route.ts'

interface Matched {
  route: SocketRoute
  params: Record<string, string>
}

/** Above the 10 MiB that clients send in one message. */
const maxMessageBytes = 16 * 1024 * 1024

export function addSockets(server: FastifyInstance, options: ServerOptions, routes: SocketRoute[]): void {
  const sockets = new WebSocketServer({ noServer: true, perMessageDeflate: false, maxPayload: maxMessageBytes })
  const match = matcher(routes.flatMap(withAliases))
  server.server.on('upgrade', (request, connection, head) => {
    connection.on('error', () => connection.destroy())
    const id = randomUUID()
    open(options, match, request, connection).then(
      ({ headers, run }) => {
        const add = (lines: string[]) => {
          for (const [name, value] of Object.entries({ ...commonHeaders(options.area, id), ...headers })) {
            lines.push(`${name}: ${value}`)
          }
        }
        sockets.once('headers', add)
        sockets.handleUpgrade(request, connection, head, (socket: WebSocket) => {
          socket.on('error', () => socket.terminate())
          terminateOnError(socket, (err) =>
            options.log.error({ request: id, err }, 'socket handler failed; closing it'),
          )
          options.log.info({ request: id, path: pathOf(request), status: 101 }, 'request completed')
          run(socket)
        })
        sockets.off('headers', add) // the listener remains when the handshake is rejected
      },
      (err: unknown) => refuse(options, connection, id, err),
    )
  })
  server.addHook('preClose', async () => {
    for (const socket of sockets.clients) socket.terminate()
  })
}

/** An exception while a message is handled ends this connection only, not the process. */
function terminateOnError(socket: WebSocket, onError: (err: unknown) => void): void {
  const emit = socket.emit.bind(socket)
  socket.emit = (event: string, ...args: unknown[]) => {
    try {
      return emit(event, ...args)
    } catch (err) {
      onError(err)
      socket.terminate()
      return false
    }
  }
}

async function open(
  options: ServerOptions,
  match: (path: string) => Matched | undefined,
  request: IncomingMessage,
  connection: Duplex,
): Promise<OpenSocket> {
  const tokenHash = readTokenHash(request.headers.authorization)
  const found = match(pathOf(request))
  if (!found) throw notFound(`no such path: ${pathOf(request)}`)
  if (request.headers.upgrade?.toLowerCase() !== 'websocket')
    throw badRequest('this path only accepts WebSocket upgrades')
  const search = readSearch(request.url ?? '')
  const ctx = { ...options.context, area: options.area, tokenHash }
  const release = await ctx.connections.take(ctx.db, tokenHash)
  connection.once('close', release)
  if (connection.destroyed) release() // it was closed meanwhile, so the event does not come
  return found.route.open({ ctx, params: found.params, headers: request.headers, search })
}

function pathOf(request: IncomingMessage): string {
  return request.url?.split('?')[0] ?? '/'
}

function matcher(routes: SocketRoute[]): (path: string) => Matched | undefined {
  const patterns = routes.map((route) => ({
    route,
    pattern: new RegExp(`^${route.path.replaceAll(/\{(\w+)\}/g, '(?<$1>[^/]+)')}/?$`),
  }))
  return (path) => {
    for (const { route, pattern } of patterns) {
      const groups = pattern.exec(path)?.groups
      if (groups || pattern.test(path)) return { route, params: decoded(groups ?? {}) }
    }
    return undefined
  }
}

function decoded(groups: Record<string, string>): Record<string, string> {
  try {
    return Object.fromEntries(Object.entries(groups).map(([name, value]) => [name, decodeURIComponent(value)]))
  } catch {
    throw badRequest('the path is not well-formed')
  }
}

function refuse(options: ServerOptions, connection: Duplex, id: string, err: unknown): void {
  const error = asBerthError(err)
  if (error.statusCode >= 500) options.log.error({ request: id, err: error.cause ?? error }, error.message)
  const body = JSON.stringify(problemBody(options.area, error))
  const headers = {
    ...problemHeaders(error),
    ...commonHeaders(options.area, id),
    'content-type': 'application/json',
    'content-length': String(Buffer.byteLength(body)),
    connection: 'close',
  }
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`)
  connection.end(`HTTP/1.1 ${error.statusCode} ${STATUS_CODES[error.statusCode]}\r\n${lines.join('')}\r\n${body}`)
}
