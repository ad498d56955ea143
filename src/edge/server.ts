import { randomBytes } from 'node:crypto'
import type { ServerHttp2Session } from 'node:http2'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import type { TLSSocket } from 'node:tls'
import { privatePort } from '../model/postgres/cluster.ts'
import { answerText } from './http/answer.ts'
import { ClientConnection, type EdgeParts, peerOf } from './http/client.ts'
import type { Peer } from './http/forward.ts'
import { serveHttp2 } from './http/http2.ts'
import type { Relay } from './http/relay.ts'
import { type AppRoute, findPort, isFurtherPort } from './routing/app.ts'
import type { AppPort } from './routing/app-port.ts'
import { ApiRelay, type ApiSettings, isApiPlace } from './tcp/api.ts'
import { DatabaseRelay, type DatabaseSettings } from './tcp/database.ts'
import { Tunnel } from './tcp/tunnel.ts'
import { type EdgeTls, handshakeByte, openTls, readServerName, type TlsRules, webRules } from './tls/handshake.ts'

export interface EdgeServerOptions {
  parts: EdgeParts
  tls: EdgeTls | undefined
  /** For machines that use clusters. */
  databases?: DatabaseSettings | null
  /** For machines that use the API. */
  api?: ApiSettings | null
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
const firstByteMillis = 15_000
// What a client of PostgreSQL sends to ask for TLS, and the answer that it may begin.
const postgresAsks = Buffer.from([0, 0, 0, 8, 4, 210, 22, 47])
const postgresMay = 'S'

export function createEdgeServer({ parts, tls, databases, api, maxConnections }: EdgeServerOptions): EdgeServer {
  const connections = new Set<ClientConnection | Relay>()
  const sessions = new Set<ServerHttp2Session>()
  /** Everything that was accepted and is open, also what has not said anything yet. */
  const sockets = new Set<Socket>()
  const { apps } = parts.table
  const apiParts = api && { pool: parts.pool, settings: api, nextId: parts.nextId, open: new Map<string, number>() }
  let isDraining = false
  let drained: (() => void) | undefined

  function add(socket: Duplex, connection: ClientConnection | Relay): void {
    connections.add(connection)
    socket.allowHalfOpen = true // who has said the last word may still listen; who never said one does not
    socket.on('close', () => connections.delete(connection))
    if (isDraining) connection.drain()
  }

  function serve(socket: Duplex, peer: Peer, address: string | undefined): ClientConnection {
    const connection = new ClientConnection(socket, parts, peer, address)
    add(socket, connection)
    return connection
  }

  function relay(socket: Duplex, connection: Relay): void {
    add(socket, connection)
    connection.start()
  }

  function tunnel(socket: Duplex, peer: Peer, local: string, app: AppRoute): void {
    relay(socket, new Tunnel(socket, parts, { ...peer, local }, app))
  }

  /** False when nothing there is a cluster. */
  function acceptDatabase(socket: Socket, local: string): boolean {
    const table = parts.table.databases
    const route = socket.localPort === privatePort ? table.find(local) : undefined
    if (!databases || !route) return false
    relay(socket, new DatabaseRelay(socket, { table, pool: parts.pool, settings: databases }, route))
    return true
  }

  function acceptApi(socket: Socket, local: string): boolean {
    if (!apiParts || !isApiPlace(apiParts.settings, local, socket.localPort)) return false
    relay(socket, new ApiRelay(socket, apiParts))
    return true
  }

  function serveSecure(socket: TLSSocket): void {
    const peer = peerOf(socket, true)
    const local = localOf(socket)
    const app = findApp(local, socket.servername || '')
    const port = app && findPort(app, peer.port, true, parts.edgePort)
    socket.on('error', () => {})
    if (app && port && !port.http) tunnel(socket, peer, local, app)
    else if (socket.alpnProtocol === 'h2') {
      const session = serveHttp2(socket, (inner) => void serve(inner, peer, dedicated(local)), port?.idleMillis)
      sessions.add(session)
      session.on('close', () => sessions.delete(session))
      if (isDraining) session.close()
    } else serve(socket, peer, dedicated(local))
  }

  const tlsServerOf = tls && openTls(tls, serveSecure)

  function startTls(socket: Socket, rules: TlsRules): void {
    tlsServerOf!(rules).emit('connection', socket)
  }

  /** By the address if it is its own, else by the name that the client asks for. */
  function findApp(local: string, name: string): AppRoute | undefined {
    return apps.findAddress(local) ?? (name === '' ? undefined : apps.find(name.toLowerCase()))
  }

  function findSecurePort(socket: Socket, local: string, name: string): AppPort | undefined {
    const app = findApp(local, name)
    return app && findPort(app, socket.localPort!, true, parts.edgePort)
  }

  function dedicated(local: string): string | undefined {
    return apps.findAddress(local) ? local : undefined
  }

  /** What a client says first tells which protocol it speaks. */
  function sniff(socket: Socket, isEnough: (first: Buffer) => boolean, found: (first: Buffer) => void): void {
    let first = Buffer.alloc(0)
    const timer = setTimeout(() => socket.destroy(), firstByteMillis)
    const gone = () => clearTimeout(timer)
    socket.on('error', () => {})
    socket.once('close', gone)
    socket.on('data', function take(chunk: Buffer) {
      first = Buffer.concat([first, chunk])
      if (!isEnough(first)) return
      gone()
      socket.off('close', gone)
      socket.off('data', take)
      socket.pause()
      found(first)
    })
    socket.resume()
  }

  function acceptShared(socket: Socket, local: string): void {
    const { localPort } = socket
    const peer = peerOf(socket, false)
    const isFurther = isFurtherPort(peer.port, parts.edgePort)
    if ((!tls && !isFurther) || localPort === 80) {
      serve(socket, peer, dedicated(local))
      return
    }
    if (!tls) {
      socket.destroy()
      return
    }
    const isSecure = tls.isRequired || isFurther || localPort === 443
    const isWhole = (first: Buffer) => readServerName(first) !== undefined
    sniff(socket, isWhole, (first) => {
      if (isSecure || first[0] === handshakeByte) {
        const port = findSecurePort(socket, local, readServerName(first)!)
        socket.unshift(first)
        if (isFurther && !port?.tls) socket.destroy()
        else startTls(socket, port?.tlsRules ?? webRules)
        return
      }
      const connection = serve(socket, peer, dedicated(local))
      socket.resume()
      connection.onData(first)
    })
  }

  function acceptPort(socket: Socket, local: string, app: AppRoute): void {
    const port = app.ports.get(socket.localPort!)
    if (!port || ((port.tls || port.pgTls) && !tls)) socket.destroy()
    else if (port.pgTls) startPostgresTls(socket, port.tlsRules)
    else if (port.tls) startTls(socket, port.tlsRules)
    else if (port.http) serve(socket, peerOf(socket, false), local)
    else tunnel(socket, peerOf(socket, false), local, app)
  }

  function startPostgresTls(socket: Socket, rules: TlsRules): void {
    const isWhole = (first: Buffer) => first.length >= postgresAsks.length
    sniff(socket, isWhole, (first) => {
      if (!first.equals(postgresAsks)) {
        socket.destroy()
        return
      }
      socket.write(postgresMay)
      startTls(socket, rules)
    })
  }

  const sweeper = setInterval(() => {
    const now = Date.now()
    for (const connection of connections) connection.sweep(now)
    parts.pool.sweep(now, (key) => parts.table.hasKey(key))
  }, sweepMillis)

  return {
    accept(socket) {
      if (sockets.size >= maxConnections) {
        turnAway(socket, parts.nextId())
        return
      }
      sockets.add(socket)
      socket.once('close', () => {
        sockets.delete(socket)
        if (sockets.size === 0) drained?.()
      })
      const local = localOf(socket)
      if (acceptDatabase(socket, local) || acceptApi(socket, local)) return
      const app = socket.localPort === parts.edgePort ? undefined : apps.findAddress(local)
      if (app) acceptPort(socket, local, app)
      else acceptShared(socket, local)
    },

    async drain(millis) {
      isDraining = true
      const ended = new Promise<void>((resolve) => {
        drained = resolve
      })
      // What has not said anything yet may be about to.
      for (const session of sessions) session.close()
      for (const connection of connections) connection.drain()
      if (sockets.size > 0) await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, millis))])
      clearInterval(sweeper)
      for (const connection of connections) connection.destroy()
      for (const session of sessions) session.destroy()
      for (const socket of sockets) socket.destroy()
      parts.balance.close()
      parts.pool.close()
    },
  }
}

function localOf(socket: Socket): string {
  return (socket.localAddress ?? '').replace(/^::ffff:/, '')
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
