import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import type { Server, TLSSocket } from 'node:tls'
import type { ConnectionSet } from './connection-set.ts'
import { ClientConnection } from './http/client.ts'
import type { HttpContext } from './http/context.ts'
import { serveHttp2 } from './http/http2-client.ts'
import { UploadWindows } from './http/upload-windows.ts'
import { type AppRoute, findPort } from './routing/app.ts'
import { isExtraPort } from './routing/app-listen.ts'
import type { AppPort } from './routing/app-port.ts'
import { readFirstBytes } from './tcp/first-bytes.ts'
import { localAddressOf, peerOf } from './tcp/peer.ts'
import { Tunnel, type TunnelContext } from './tcp/tunnel.ts'
import { handshakeRecord, normalizeServerName, readServerName } from './tls/client-hello.ts'
import { type TlsRules, webTlsRules } from './tls/rules.ts'
import { type EdgeTls, openTlsServers } from './tls/server.ts'
import type { Peer } from './types.ts'

// The SSLRequest message of PostgreSQL clients, and the reply that TLS may start.
const postgresSslRequest = Buffer.from([0, 0, 0, 8, 4, 210, 22, 47])
const postgresSslAccepted = 'S'

/** Detects the protocol of connections to sandboxes and apps, and serves them. */
export class Acceptor {
  private readonly context: HttpContext
  private readonly tunnelContext: TunnelContext
  private readonly connections: ConnectionSet
  private readonly tls: EdgeTls | undefined
  private readonly uploads = new UploadWindows()
  private readonly findTlsServer: ((rules: TlsRules) => Server) | undefined

  constructor(context: HttpContext, connections: ConnectionSet, tls: EdgeTls | undefined) {
    const { table, balancer, pool, edgePort } = context
    this.context = context
    this.tunnelContext = { apps: table.apps, balancer, pool, edgePort }
    this.connections = connections
    this.tls = tls
    this.findTlsServer = tls && openTlsServers(tls, (socket) => this.serveSecure(socket))
  }

  accept(socket: Socket, localAddress: string): void {
    const { table, edgePort } = this.context
    const app = socket.localPort === edgePort ? undefined : table.apps.findAddress(localAddress)
    if (app) this.acceptOwnAddress(socket, localAddress, app)
    else this.acceptSharedAddress(socket, localAddress)
  }

  /** The address belongs to one app, so the port alone determines the protocol. */
  private acceptOwnAddress(socket: Socket, localAddress: string, app: AppRoute): void {
    const port = app.ports.get(socket.localPort!)
    if (!port || ((port.tls || port.pgTls) && !this.tls)) socket.destroy()
    else if (port.pgTls) this.startPostgresTls(socket, port.tlsRules)
    else if (port.tls) this.startTls(socket, port.tlsRules)
    else if (port.http) this.serveHttp(socket, this.peerOf(socket, false), localAddress)
    else this.serveTunnel(socket, this.peerOf(socket, false), localAddress, app)
  }

  /** The address serves many apps, so the host name in the TLS handshake or in the request determines the app. */
  private acceptSharedAddress(socket: Socket, localAddress: string): void {
    const { tls } = this
    const peer = this.peerOf(socket, false)
    const isExtra = isExtraPort(peer.port, this.context.edgePort)
    if ((!tls && !isExtra) || socket.localPort === 80) {
      this.serveHttp(socket, peer, this.findOwnAddress(localAddress))
      return
    }
    if (!tls) {
      socket.destroy()
      return
    }
    const requiresTls = tls.isRequired || isExtra || socket.localPort === 443
    const hasServerName = (first: Buffer) => readServerName(first) !== undefined
    readFirstBytes(socket, hasServerName, (first) => {
      if (requiresTls || first[0] === handshakeRecord) {
        this.startSharedTls(socket, localAddress, first, isExtra)
        return
      }
      const connection = this.serveHttp(socket, peer, this.findOwnAddress(localAddress))
      socket.resume()
      connection.onData(first)
    })
  }

  private startSharedTls(socket: Socket, localAddress: string, first: Buffer, isExtra: boolean): void {
    const port = this.findSecurePort(socket, localAddress, normalizeServerName(readServerName(first)!))
    socket.unshift(first)
    if (isExtra && !port?.tls) socket.destroy()
    else this.startTls(socket, port?.tlsRules ?? webTlsRules)
  }

  private startTls(socket: Socket, rules: TlsRules): void {
    this.findTlsServer!(rules).emit('connection', socket)
  }

  private startPostgresTls(socket: Socket, rules: TlsRules): void {
    const isComplete = (first: Buffer) => first.length >= postgresSslRequest.length
    readFirstBytes(socket, isComplete, (first) => {
      if (!first.equals(postgresSslRequest)) {
        socket.destroy()
        return
      }
      socket.write(postgresSslAccepted)
      this.startTls(socket, rules)
    })
  }

  /** Serves a connection after its TLS handshake. */
  private serveSecure(socket: TLSSocket): void {
    const peer = this.peerOf(socket, true)
    const localAddress = localAddressOf(socket)
    const serverName = readServerHost(socket)
    const app = this.findApp(localAddress, serverName)
    const port = app && findPort(app, peer.port, true, this.context.edgePort)
    socket.on('error', () => {})
    if (app && port && !port.http) this.serveTunnel(socket, peer, localAddress, app)
    else if (socket.alpnProtocol === 'h2') {
      const serve = (connection: Duplex) =>
        void this.serveHttp(connection, peer, this.findOwnAddress(localAddress), serverName)
      this.connections.addSession(serveHttp2(socket, serve, this.uploads, port?.idleTimeoutMs))
    } else this.serveHttp(socket, peer, this.findOwnAddress(localAddress), serverName)
  }

  private serveHttp(socket: Duplex, peer: Peer, ownAddress: string | undefined, serverName?: string): ClientConnection {
    const connection = new ClientConnection(socket, this.context, { peer, address: ownAddress, serverName })
    this.connections.add(socket, connection)
    return connection
  }

  private serveTunnel(socket: Duplex, peer: Peer, localAddress: string, app: AppRoute): void {
    const tunnel = new Tunnel(socket, this.tunnelContext, { ...peer, localAddress }, app)
    this.connections.add(socket, tunnel)
    tunnel.start()
  }

  private peerOf(socket: Socket, secure: boolean): Peer {
    return peerOf(socket, secure, this.context.trustedProxies)
  }

  /** Finds the app by its own address, or else by the host name that the client asks for. */
  private findApp(localAddress: string, serverName: string): AppRoute | undefined {
    const { apps } = this.context.table
    return apps.findAddress(localAddress) ?? (serverName === '' ? undefined : apps.find(serverName))
  }

  private findSecurePort(socket: Socket, localAddress: string, serverName: string): AppPort | undefined {
    const app = this.findApp(localAddress, serverName)
    return app && findPort(app, socket.localPort!, true, this.context.edgePort)
  }

  /** The local address, if it belongs to a single app. */
  private findOwnAddress(localAddress: string): string | undefined {
    return this.context.table.apps.findAddress(localAddress) ? localAddress : undefined
  }
}

/** The host name that the client asked for in the TLS handshake; empty if there is none. */
function readServerHost({ servername }: TLSSocket): string {
  return normalizeServerName(typeof servername === 'string' ? servername : '')
}
