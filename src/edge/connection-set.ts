import type { ServerHttp2Session } from 'node:http2'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'

export interface Connection {
  /** Enforces timeouts; called once a second. */
  sweep(now: number): void
  /** Closes the connection when its current request is finished. */
  drain(): void
  destroy(): void
}

/** All open connections, to enforce their timeouts and to close them when the edge stops. */
export class ConnectionSet {
  private readonly connections = new Set<Connection>()
  private readonly sessions = new Set<ServerHttp2Session>()
  /** All accepted sockets, including those whose protocol is not known yet. */
  private readonly sockets = new Set<Socket>()
  private isDraining = false
  private onEmpty: (() => void) | undefined

  get socketCount(): number {
    return this.sockets.size
  }

  addSocket(socket: Socket): void {
    this.sockets.add(socket)
    socket.once('close', () => {
      this.sockets.delete(socket)
      if (this.sockets.size === 0) this.onEmpty?.()
    })
  }

  add(socket: Duplex, connection: Connection): void {
    this.connections.add(connection)
    // A client may close its sending side and still receive. Before the protocol is known, that closes the connection.
    socket.allowHalfOpen = true
    socket.on('close', () => this.connections.delete(connection))
    if (this.isDraining) connection.drain()
  }

  addSession(session: ServerHttp2Session): void {
    this.sessions.add(session)
    session.on('close', () => this.sessions.delete(session))
    if (this.isDraining) session.close()
  }

  sweep(now: number): void {
    for (const connection of this.connections) connection.sweep(now)
  }

  /** Resolves when all sockets are closed, or after the timeout. Sockets without a request yet may still send one. */
  async drain(timeoutMs: number): Promise<void> {
    this.isDraining = true
    const empty = new Promise<void>((resolve) => {
      this.onEmpty = resolve
    })
    for (const session of this.sessions) session.close()
    for (const connection of this.connections) connection.drain()
    if (this.sockets.size > 0) await Promise.race([empty, new Promise((resolve) => setTimeout(resolve, timeoutMs))])
  }

  destroy(): void {
    for (const connection of this.connections) connection.destroy()
    for (const session of this.sessions) session.destroy()
    for (const socket of this.sockets) socket.destroy()
  }
}
