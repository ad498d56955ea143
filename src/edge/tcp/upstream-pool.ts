import { connect, type Socket } from 'node:net'
import type { Endpoint } from '../types.ts'
import { Upstream } from './upstream.ts'

const connectTimeoutMs = 1_000
const maxIdlePerTarget = 128
// Servers close idle connections, many after two seconds. A request that must not be sent twice does not use a connection
// that could be closing.
const freshMs = 1_000

/** Idle connections to targets, kept for the next request. */
export class UpstreamPool {
  private readonly idle = new Map<string, Upstream[]>()
  /** The number of open connections to each target. */
  private readonly open = new Map<string, number>()
  /** Targets that have passed a health check since their last connection was closed. */
  private readonly ready = new Set<string>()

  take(endpoint: Pick<Endpoint, 'key'>, mayRepeat: boolean): Upstream | undefined {
    const idle = this.idle.get(endpoint.key)
    if (idle === undefined) return undefined
    for (let upstream = idle.pop(); upstream; upstream = idle.pop()) {
      if (upstream.socket.destroyed || upstream.socket.readableEnded) continue
      if (!mayRepeat && Date.now() - upstream.idleSince > freshMs) {
        idle.push(upstream)
        return undefined
      }
      return upstream
    }
    return undefined
  }

  give(upstream: Upstream): void {
    upstream.user = undefined
    upstream.isUsed = true
    upstream.idleSince = Date.now()
    const idle = this.idle.get(upstream.key)
    if (idle === undefined) this.idle.set(upstream.key, [upstream])
    else if (idle.length < maxIdlePerTarget) idle.push(upstream)
    else upstream.socket.destroy()
  }

  connect(endpoint: Endpoint): Promise<Upstream<Socket>> {
    return this.dial(endpoint).then((socket) => new Upstream(socket, endpoint.key))
  }

  /** Opens a connection that the pool counts but does not keep. */
  dial({ address, localAddress, port, key }: Endpoint): Promise<Socket> {
    if (address === null) throw new Error(`connect to ${key}: the target has no network`)
    const { promise, resolve, reject } = Promise.withResolvers<Socket>()
    const target = address.startsWith('/') ? { path: address } : { host: address, port }
    const options = { ...target, noDelay: true, allowHalfOpen: true, keepAlive: true }
    const socket = connect(localAddress === undefined ? options : { ...options, localAddress })
    const timer = setTimeout(() => socket.destroy(new Error('connection timed out')), connectTimeoutMs)
    const fail = (error: Error) => {
      clearTimeout(timer)
      reject(error)
    }
    socket.once('error', fail)
    socket.once('connect', () => {
      clearTimeout(timer)
      socket.off('error', fail)
      this.count(key, 1)
      socket.once('close', () => this.count(key, -1))
      resolve(socket)
    })
    return promise
  }

  isReady(endpoint: Endpoint): boolean {
    return this.ready.has(endpoint.key)
  }

  setReady(endpoint: Endpoint, isReady: boolean): void {
    if (isReady) this.ready.add(endpoint.key)
    else this.ready.delete(endpoint.key)
  }

  private count(key: string, change: number): void {
    const open = (this.open.get(key) ?? 0) + change
    if (open > 0) {
      this.open.set(key, open)
      return
    }
    // The program may have exited, so its successor has to pass a health check first.
    this.open.delete(key)
    this.ready.delete(key)
    this.idle.delete(key)
  }

  /** Closes connections that were idle for too long or whose target no longer exists. */
  sweep(now: number, exists: (key: string) => boolean): void {
    for (const [key, idle] of this.idle) {
      const isKnown = exists(key)
      const kept: Upstream[] = []
      for (const upstream of idle) {
        const isFresh = now - upstream.idleSince < upstream.idleTimeoutMs
        if (isKnown && isFresh && !upstream.socket.destroyed) kept.push(upstream)
        else upstream.socket.destroy()
      }
      if (kept.length === 0) this.idle.delete(key)
      else this.idle.set(key, kept)
    }
  }
}
