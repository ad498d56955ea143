import { connect, type Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import type { Place } from '../types.ts'
import { Http2Upstreams } from './upstream-http2.ts'

/** Who gets what a connection to a target brings. */
export interface UpstreamUser {
  onUpstreamData(bytes: Buffer): void
  onUpstreamEnd(): void
  onUpstreamDrain(): void
  onUpstreamClose(): void
}

/** A connection to a target, of one request at a time. */
export class Upstream<S extends Duplex = Duplex> {
  readonly socket: S
  readonly key: string
  user: UpstreamUser | undefined
  /** It has carried a request before, so the other side may be about to close it. */
  isUsed = false
  idleSince = 0
  /** How long it may wait for the next request. */
  keepMillis = idleMillis

  constructor(socket: S, key: string) {
    this.socket = socket
    this.key = key
    socket.on('data', (bytes) => {
      if (this.user) this.user.onUpstreamData(bytes)
      else socket.destroy() // nobody asked
    })
    socket.on('end', () => {
      if (this.user) this.user.onUpstreamEnd()
      else socket.destroy()
    })
    socket.on('drain', () => this.user?.onUpstreamDrain())
    socket.on('error', () => {}) // what follows it is the close
    socket.on('close', () => this.user?.onUpstreamClose())
  }

  limitIdle(millis: number): void {
    this.keepMillis = Math.min(millis, this.keepMillis)
  }
}

const connectMillis = 1_000
const maxIdlePerTarget = 128
const idleMillis = 30_000
// Servers close connections that are idle, many after two seconds. A request that must not be sent twice takes none
// that could just be closing.
const freshMillis = 1_000

export class UpstreamPool {
  private readonly idle = new Map<string, Upstream[]>()
  /** Open connections of each target. */
  private readonly open = new Map<string, number>()
  /** Targets that have said they are ready since their last connection was closed. */
  private readonly ready = new Set<string>()
  private readonly http2 = new Http2Upstreams((place) => this.dial(place))

  take(place: Pick<Place, 'key'>, mayRepeat: boolean): Upstream | undefined {
    const idle = this.idle.get(place.key)
    if (idle === undefined) return undefined
    for (let upstream = idle.pop(); upstream; upstream = idle.pop()) {
      if (upstream.socket.destroyed || upstream.socket.readableEnded) continue
      if (!mayRepeat && Date.now() - upstream.idleSince > freshMillis) {
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

  connect(place: Place): Promise<Upstream<Socket>> {
    return this.dial(place).then((socket) => new Upstream(socket, place.key))
  }

  /** The same for a program that speaks HTTP/2, for one request. */
  connectHttp2(place: Place): Promise<Upstream> {
    return this.http2.connect(place).then((socket) => new Upstream(socket, place.key))
  }

  private dial({ address, from, port, key }: Place): Promise<Socket> {
    if (address === null) throw new Error('a route without an address')
    const { promise, resolve, reject } = Promise.withResolvers<Socket>()
    const target = address.startsWith('/') ? { path: address } : { host: address, port }
    const options = { ...target, noDelay: true, allowHalfOpen: true, keepAlive: true }
    const socket = connect(from === undefined ? options : { ...options, localAddress: from })
    const timer = setTimeout(() => socket.destroy(new Error('no answer')), connectMillis)
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

  isReady(place: Place): boolean {
    return this.ready.has(place.key)
  }

  setReady(place: Place, isReady: boolean): void {
    if (isReady) this.ready.add(place.key)
    else this.ready.delete(place.key)
  }

  private count(key: string, change: number): void {
    const open = (this.open.get(key) ?? 0) + change
    if (open > 0) {
      this.open.set(key, open)
      return
    }
    // The program behind may have ended, and what comes next has to say that it is ready.
    this.open.delete(key)
    this.ready.delete(key)
    this.idle.delete(key)
  }

  /** Closes what nobody has used for a while, and what `isWanted` does not know. */
  sweep(now: number, isWanted: (key: string) => boolean): void {
    this.http2.sweep(now, isWanted)
    for (const [key, idle] of this.idle) {
      const wanted = isWanted(key)
      const kept: Upstream[] = []
      for (const upstream of idle) {
        if (wanted && now - upstream.idleSince < upstream.keepMillis && !upstream.socket.destroyed) kept.push(upstream)
        else upstream.socket.destroy()
      }
      if (kept.length === 0) this.idle.delete(key)
      else this.idle.set(key, kept)
    }
  }

  close(): void {
    this.sweep(Date.now(), () => false)
  }
}
