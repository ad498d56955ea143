import type { Duplex } from 'node:stream'
import type { Upstream, UpstreamUser } from './upstream.ts'

/** Copies bytes between a client and an upstream connection in both directions, with backpressure. */
export abstract class Relay implements UpstreamUser {
  isOver = false
  protected readonly socket: Duplex
  private readonly idleTimeoutMs: number
  private deadline: number
  private upstream: Upstream | undefined

  constructor(socket: Duplex, idleTimeoutMs: number) {
    this.socket = socket
    this.idleTimeoutMs = idleTimeoutMs
    this.deadline = Date.now() + idleTimeoutMs
    socket.pause()
    socket.on('error', () => {})
    socket.on('close', () => this.onClose())
  }

  abstract start(): void

  /** Starts copying. `first` is sent to the upstream before the client's bytes. */
  protected join(upstream: Upstream, first?: Buffer): void {
    const { socket } = this
    this.upstream = upstream
    upstream.user = this
    if (first) upstream.socket.write(first)
    socket.on('data', (bytes: Buffer) => {
      this.touch()
      if (!upstream.socket.write(bytes)) socket.pause()
    })
    socket.on('drain', () => upstream.socket.resume())
    socket.on('end', () => upstream.socket.end())
    socket.resume()
  }

  onUpstreamData(bytes: Buffer): void {
    this.touch()
    if (!this.socket.write(bytes)) this.upstream!.socket.pause()
  }

  onUpstreamDrain(): void {
    this.socket.resume()
  }

  onUpstreamEnd(): void {
    this.socket.end()
  }

  onUpstreamClose(): void {
    this.socket.destroy()
  }

  private touch(): void {
    this.deadline = Date.now() + this.idleTimeoutMs
  }

  protected onClose(): void {
    this.isOver = true
    this.upstream?.socket.destroy()
  }

  /** Called once a second. */
  sweep(now: number): void {
    if (now >= this.deadline) this.destroy()
  }

  /** Does nothing: the connection may go on until the drain timeout. */
  drain(): void {}

  destroy(): void {
    this.socket.destroy()
  }
}
