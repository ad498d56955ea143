import { randomBytes } from 'node:crypto'
import type { Socket } from 'node:net'
import { createServer as createTlsServer } from 'node:tls'
import { answerText } from './answer.ts'
import { ClientConnection, type EdgeParts } from './client.ts'

export interface EdgeServerOptions {
  parts: EdgeParts
  tls: { cert: string; key: string } | undefined
  /** Beyond these, clients are told to come back later. */
  maxConnections: number
}

export interface EdgeServer {
  /** Serves a connection of which nothing has been read. */
  accept(socket: Socket): void
  /** Lets requests end; what lasts longer is cut off. */
  drain(millis: number): Promise<void>
}

const sweepMillis = 1_000

export function createEdgeServer({ parts, tls, maxConnections }: EdgeServerOptions): EdgeServer {
  const connections = new Set<ClientConnection>()
  let isDraining = false
  let drained: (() => void) | undefined

  function serve(socket: Socket): void {
    if (connections.size >= maxConnections) {
      turnAway(socket, parts.nextId())
      return
    }
    const connection = new ClientConnection(socket, parts, tls !== undefined)
    connections.add(connection)
    socket.on('close', () => {
      connections.delete(connection)
      if (isDraining && connections.size === 0) drained?.()
    })
    if (isDraining) connection.drain()
  }

  // It never listens itself: it makes a connection that speaks TLS out of one that does not yet.
  const secure = tls && createTlsServer({ ...tls, ALPNProtocols: ['http/1.1'], handshakeTimeout: 10_000 }, serve)
  const sweeper = setInterval(() => {
    const now = Date.now()
    for (const connection of connections) connection.sweep(now)
    parts.pool.sweep(now, (key) => parts.table.hasKey(key))
  }, sweepMillis)

  return {
    accept(socket) {
      socket.allowHalfOpen = true
      if (secure) secure.emit('connection', socket)
      else serve(socket)
    },

    async drain(millis) {
      isDraining = true
      const ended = new Promise<void>((resolve) => {
        drained = resolve
      })
      for (const connection of connections) connection.drain()
      if (connections.size > 0) await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, millis))])
      clearInterval(sweeper)
      for (const connection of connections) connection.destroy()
      parts.pool.close()
    },
  }
}

function turnAway(socket: Socket, id: string): void {
  const body = { error: 'unavailable', message: 'too many connections; try again shortly' }
  socket.on('error', () => {})
  socket.end(answerText(503, body, '', { id, keepAlive: false, withoutBody: false }), () => socket.destroy())
}

/** Texts that no other request has: a random beginning for each process, and a number. */
export function idMaker(): () => string {
  const prefix = `${randomBytes(9).toString('hex')}-`
  let count = 0
  return () => {
    count += 1
    return prefix + count.toString(36)
  }
}
