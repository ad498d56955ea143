import { randomBytes } from 'node:crypto'
import type { Socket } from 'node:net'
import { Acceptor } from './acceptor.ts'
import { ConnectionSet } from './connection-set.ts'
import { answerText } from './http/answer.ts'
import type { HttpContext } from './http/context.ts'
import { PrivateAcceptor } from './private-acceptor.ts'
import type { ApiSettings } from './tcp/api.ts'
import type { DatabaseSettings } from './tcp/database.ts'
import { localAddressOf } from './tcp/peer.ts'
import type { EdgeTls } from './tls/server.ts'

export interface EdgeServerOptions {
  context: HttpContext
  tls: EdgeTls | undefined
  /** Lets machines connect to clusters. */
  databases?: DatabaseSettings | null
  /** Lets machines connect to the API. */
  api?: ApiSettings | null
  /** Further connections get a 503 response. */
  maxConnections: number
}

export interface EdgeServer {
  /** Serves a new connection. */
  accept(socket: Socket): void
  /** Lets requests finish, and closes the connections that are still open after the timeout. */
  drain(timeoutMs: number): Promise<void>
}

const sweepIntervalMs = 1_000

export function createEdgeServer({ context, tls, databases, api, maxConnections }: EdgeServerOptions): EdgeServer {
  const connections = new ConnectionSet()
  const privateAcceptor = new PrivateAcceptor(context, connections, { databases, api })
  const acceptor = new Acceptor(context, connections, tls)

  const sweeper = setInterval(() => {
    const now = Date.now()
    connections.sweep(now)
    sweepUpstreams(context, now)
  }, sweepIntervalMs)

  return {
    accept(socket) {
      if (connections.socketCount >= maxConnections) {
        refuseConnection(socket, context.nextId())
        return
      }
      connections.addSocket(socket)
      const localAddress = localAddressOf(socket)
      if (!privateAcceptor.accept(socket, localAddress)) acceptor.accept(socket, localAddress)
    },

    async drain(timeoutMs) {
      await connections.drain(timeoutMs)
      clearInterval(sweeper)
      connections.destroy()
      context.balancer.close()
      closeUpstreams(context)
    },
  }
}

type Upstreams = Pick<HttpContext, 'pool' | 'http2' | 'table'>

/** Closes upstream connections that are idle or whose target no longer exists. */
export function sweepUpstreams({ pool, http2, table }: Upstreams, now: number): void {
  const exists = (key: string) => table.hasKey(key)
  http2.sweep(now, exists)
  pool.sweep(now, exists)
}

function closeUpstreams({ pool, http2 }: Upstreams): void {
  const now = Date.now()
  http2.sweep(now, () => false)
  pool.sweep(now, () => false)
}

function refuseConnection(socket: Socket, id: string): void {
  const body = { error: 'unavailable', message: 'too many connections; try again shortly' }
  socket.on('error', () => {})
  socket.end(answerText(503, body, '', { id, keepAlive: false, withoutBody: false }), () => socket.destroy())
}

/** Creates unique request ids: a random prefix for each process, and a counter. */
export function createIdGenerator(): () => string {
  const prefix = `${randomBytes(9).toString('hex')}-`
  let count = 0
  return () => {
    count += 1
    return prefix + count.toString(36)
  }
}
