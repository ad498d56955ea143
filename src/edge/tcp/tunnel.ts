import { isIPv4 } from 'node:net'
import type { Duplex } from 'node:stream'
import type { EdgeParts } from '../http/client.ts'
import type { Peer } from '../http/forward.ts'
import { Relay } from '../http/relay.ts'
import { type AppRoute, findPort, type Target } from '../routing/app.ts'
import type { Seat, Waiter } from '../routing/balance.ts'

const idleMillis = 3_600_000

/** To one machine of an app. */
export class Tunnel extends Relay {
  private readonly parts: EdgeParts
  private readonly peer: Peer & { local: string }
  private app: AppRoute
  private seat: Seat | undefined
  private waiter: Waiter | undefined
  private giveUpAt = 0

  constructor(socket: Duplex, parts: EdgeParts, peer: Peer & { local: string }, app: AppRoute) {
    super(socket, idleMillis)
    this.parts = parts
    this.peer = peer
    this.app = app
  }

  start(): void {
    this.giveUpAt = Date.now() + this.parts.balance.waitMillis
    this.seek()
  }

  private seek(): void {
    if (this.isOver || this.attempt()) return
    const waiter = {
      appId: this.app.id,
      deadline: this.giveUpAt,
      attempt: () => this.attempt(),
      giveUp: () => this.socket.destroy(),
    }
    this.waiter = waiter
    this.parts.balance.wait(waiter)
  }

  private attempt(): boolean {
    if (this.isOver) return true
    const app = this.parts.table.apps.get(this.app.id)
    const port = app && findPort(app, this.peer.port, this.peer.secure, this.parts.edgePort)
    try {
      const target = port && this.parts.balance.pick(app!, port, undefined)
      if (!target) {
        if (!port) this.socket.destroy()
        return !port
      }
      this.app = app!
      this.waiter = undefined
      this.take(target, port.proxyProtocol)
    } catch {
      this.socket.destroy()
    }
    return true
  }

  private take(target: Target, proxyProtocol: 1 | 2 | undefined): void {
    const ready = () => this.connect(target, proxyProtocol)
    this.seat = this.parts.balance.take(this.app, target, ready, () => this.again())
  }

  private connect(target: Target, proxyProtocol: 1 | 2 | undefined): void {
    const { balance, pool } = this.parts
    pool.connect(target).then(
      (upstream) => {
        balance.succeeded(target)
        if (this.isOver) upstream.socket.destroy()
        else if (!proxyProtocol) this.join(upstream)
        else this.join(upstream, proxyHeader(proxyProtocol, this.peer, upstream.socket.localPort ?? 0))
      },
      () => {
        balance.failed(target)
        this.again()
      },
    )
  }

  private again(): void {
    this.release()
    if (Date.now() < this.giveUpAt) this.seek()
    else this.socket.destroy()
  }

  private release(): void {
    const { seat } = this
    this.seat = undefined
    if (seat) this.parts.balance.leave(seat)
  }

  protected override over(): void {
    super.over()
    if (this.waiter) this.parts.balance.cancel(this.waiter)
    this.release()
  }
}

const signature = Buffer.from('0d0a0d0a000d0a515549540a', 'hex')

/** Tells the program behind who its client is, in the form of the PROXY protocol. */
export function proxyHeader(version: 1 | 2, peer: Peer & { local: string }, sourcePort: number): Buffer {
  const isFour = isIPv4(peer.address) && isIPv4(peer.local)
  if (version === 1) {
    const family = isFour ? 'TCP4' : 'TCP6'
    return Buffer.from(
      `PROXY ${family} ${peer.address} ${peer.local} ${peer.remotePort ?? sourcePort} ${peer.port}\r\n`,
    )
  }
  const addresses = [peer.address, peer.local].map((address) => (isFour ? bytesOfFour(address) : bytesOfSix(address)))
  const ports = Buffer.alloc(4)
  ports.writeUInt16BE(peer.remotePort ?? sourcePort, 0)
  ports.writeUInt16BE(peer.port, 2)
  const body = Buffer.concat([...addresses, ports])
  const head = Buffer.from([0x21, isFour ? 0x11 : 0x21, body.length >> 8, body.length & 255])
  return Buffer.concat([signature, head, body])
}

function bytesOfFour(address: string): Buffer {
  return Buffer.from(address.split('.').map(Number))
}

function bytesOfSix(address: string): Buffer {
  const bytes = Buffer.alloc(16)
  if (isIPv4(address)) {
    bytes.writeUInt16BE(0xffff, 10)
    bytesOfFour(address).copy(bytes, 12)
    return bytes
  }
  const [front = '', back] = address.split('%')[0]!.split('::')
  const words = (text: string | undefined) => (text ? text.split(':').map((word) => Number.parseInt(word, 16)) : [])
  const [first, last] = [words(front), words(back)]
  const all = back === undefined ? first : [...first, ...Array(8 - first.length - last.length).fill(0), ...last]
  for (const [index, word] of all.entries()) bytes.writeUInt16BE(word & 0xffff, index * 2)
  return bytes
}
