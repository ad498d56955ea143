// WebSockets of an API listener. An error before the upgrade is an ordinary HTTP response, so that clients can show it.
import { randomUUID } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import type { FastifyInstance } from 'fastify'
import { type WebSocket, WebSocketServer } from 'ws'
import { requireAccess } from '../../actions/account/access.ts'
import { type Credential, chooseCredential } from '../../actions/account/credential.ts'
import { BerthError, badRequest, notFound } from '../../model/errors.ts'
import { socketRequirement } from './access.ts'
import { readCredentials } from './auth.ts'
import { checkHeaders } from './hooks.ts'
import { commonHeaders, type ServerOptions } from './options.ts'
import { asBerthError } from './problem.ts'
import { refuseConnection } from './raw-response.ts'
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
      ({ headers, run, session }) => {
        const add = (lines: string[]) => {
          for (const [name, value] of Object.entries({ ...commonHeaders(options.area, id), ...headers })) {
            lines.push(`${name}: ${value}`)
          }
        }
        sockets.once('headers', add)
        sockets.handleUpgrade(request, connection, head, (socket: WebSocket) => {
          socket.on('error', () => socket.terminate())
          guardMessages(socket, session, (err) =>
            options.log.error({ request: id, err }, 'socket handler failed; closing it'),
          )
          options.log.info({ request: id, path: pathOf(request), status: 101 }, 'request completed')
          session.socket = socket
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

interface Session {
  /** Undefined until the connection is upgraded. */
  socket?: WebSocket
  isRevoked: boolean
}

/** Closes the connection when its token is revoked or expires. */
function openSession({ openSessions }: ServerOptions, credential: Credential, connection: Duplex): Session {
  const session: Session = { isRevoked: false }
  const close = () => {
    session.isRevoked = true
    if (session.socket) closeRevoked(session.socket)
    else connection.destroy()
  }
  const ended = openSessions.add(credential.hash.toString('base64'), close, credential.attenuation?.until)
  connection.once('close', ended)
  if (connection.destroyed) ended() // it was closed meanwhile, so the event does not come
  return session
}

/** The time a client has to receive the close frame. */
const closeFrameMs = 200

/** WebSocket close code 1008: policy violation. */
const policyViolation = 1008

function closeRevoked(socket: WebSocket): void {
  socket.close(policyViolation, 'the token was revoked or has expired')
  setTimeout(() => socket.terminate(), closeFrameMs).unref()
}

/**
 * Ignores messages that arrive after the token was revoked. An exception while a message is handled ends this connection
 * only, not the process.
 */
function guardMessages(socket: WebSocket, session: Session, onError: (err: unknown) => void): void {
  const emit = socket.emit.bind(socket)
  socket.emit = (event: string, ...args: unknown[]) => {
    if (event === 'message' && session.isRevoked) return false
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
): Promise<OpenSocket & { session: Session }> {
  checkHeaders(request)
  const credentials = readCredentials(request.headers.authorization, options.context.encryptionKey)
  const found = match(pathOf(request))
  if (!found) throw notFound(`no such path: ${pathOf(request)}`)
  const search = readSearch(request.url ?? '')
  const { targets, bits } = socketRequirement(found.route, found.params, search)
  const base = { ...options.context, area: options.area }
  const credential =
    credentials.length === 1 ? credentials[0]! : await chooseCredential(base, credentials, targets, bits)
  const session = openSession(options, credential, connection)
  checkHandshake(request)
  const ctx = { ...base, tokenHash: credential.hash, attenuation: credential.attenuation }
  await requireAccess(ctx, targets, bits)
  const release = await ctx.connections.take(ctx.db, ctx.tokenHash)
  connection.once('close', release)
  if (connection.destroyed) release() // it was closed meanwhile, so the event does not come
  return {
    ...(await found.route.open({ ctx, params: found.params, headers: request.headers, search, credentials })),
    session,
  }
}

/**
 * Whether a request asks for a WebSocket. Other upgrades, such as to HTTP/2, are an offer of the client, which is
 * declined by a normal response.
 */
export function isWebSocketUpgrade({ headers, method }: IncomingMessage): boolean {
  return method === 'GET' && headers.upgrade?.toLowerCase() === 'websocket'
}

/** The library that accepts the upgrade would report these errors in its own format. */
function checkHandshake({ headers }: IncomingMessage): void {
  const { 'sec-websocket-key': key, 'sec-websocket-version': version } = headers
  if (version !== '13' && version !== '8') {
    throw new BerthError('bad_request', 'Sec-WebSocket-Version must be 13', {
      headers: { 'sec-websocket-version': '13' },
    })
  }
  if (!/^[+/0-9A-Za-z]{22}==$/.test(key ?? '')) throw badRequest('Sec-WebSocket-Key must be 16 bytes in base64')
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
  refuseConnection(options.area, connection, id, error)
}
