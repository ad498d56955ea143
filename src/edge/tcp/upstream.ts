import type { Duplex } from 'node:stream'

/** Receives the events of an upstream connection. */
export interface UpstreamUser {
  onUpstreamData(bytes: Buffer): void
  onUpstreamEnd(): void
  onUpstreamDrain(): void
  onUpstreamClose(): void
}

/** Idle connections are closed after this time unless the port has a shorter timeout. */
const defaultIdleTimeoutMs = 30_000

/** A connection to a target, which serves one user at a time. */
export class Upstream<S extends Duplex = Duplex> {
  readonly socket: S
  readonly key: string
  user: UpstreamUser | undefined
  /** The connection has carried a request before, so the target may be about to close it. */
  isUsed = false
  idleSince = 0
  idleTimeoutMs = defaultIdleTimeoutMs

  constructor(socket: S, key: string) {
    this.socket = socket
    this.key = key
    socket.on('data', (bytes) => {
      if (this.user) this.user.onUpstreamData(bytes)
      else socket.destroy() // unexpected data on an idle connection
    })
    socket.on('end', () => {
      if (this.user) this.user.onUpstreamEnd()
      else socket.destroy()
    })
    socket.on('drain', () => this.user?.onUpstreamDrain())
    socket.on('error', () => {}) // a close event follows
    socket.on('close', () => this.user?.onUpstreamClose())
  }

  limitIdle(timeoutMs: number): void {
    this.idleTimeoutMs = Math.min(timeoutMs, this.idleTimeoutMs)
  }
}
