import type { Duplex } from 'node:stream'
import type { Upstream, UpstreamUser } from './upstream.ts'

/** A connection whose bytes the edge does not read: to one place, for as long as both sides want. */
export abstract class Relay implements UpstreamUser {
  protected readonly socket: Duplex
  protected isOver = false
  private readonly idleMillis: number
  private deadline: number
  private upstream: Upstream | undefined

  constructor(socket: Duplex, idleMillis: number) {
    this.socket = socket
    this.idleMillis = idleMillis
    this.deadline = Date.now() + idleMillis
    socket.pause()
    socket.on('error', () => {})
    socket.on('close', () => this.over())
  }

  abstract start(): void

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
    this.deadline = Date.now() + this.idleMillis
  }

  protected over(): void {
    this.isOver = true
    this.upstream?.socket.destroy()
  }

  /** Called once a second. */
  sweep(now: number): void {
    if (now >= this.deadline) this.destroy()
  }

  /** It ends by itself, or when the time for that is over. */
  drain(): void {}

  destroy(): void {
    this.socket.destroy()
  }
}
