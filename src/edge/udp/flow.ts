import { createSocket, type Socket } from 'node:dgram'
import type { AppRoute, Target } from '../routing/app.ts'
import type { AppPort } from '../routing/app-port.ts'
import type { Balance, Seat, Waiter } from '../routing/balance.ts'
import type { AppTable } from '../routing/route.ts'
import type { FlowTable, Listed } from './flow-table.ts'

export interface FlowParts {
  apps: AppTable
  balance: Balance
  flows: FlowTable<Flow>
  /** Of datagrams that wait to be sent, or may have to be sent again. */
  kept: { bytes: number; most: number }
  /** Flows without a machine, which are in the same queue as the requests for the app. */
  waiting: { count: number; most: number }
  /** Clients that were silent for as long are forgotten, and sooner when others wait for their places. */
  idleMillis: number
  idleWantedMillis: number
}

/** Where a client sends to, and is answered from. */
export interface DatagramListen {
  address: string
  port: number
  socket: Socket
}

export interface FlowEnds {
  appId: string
  key: string
  listen: DatagramListen
  client: { address: string; port: number }
}

const maxKeptOfFlow = 8
const maxKeptBytesOfFlow = 65_536
/** What a datagram takes beside its bytes. */
const overheadBytes = 512
/** Machines in which nobody listens say so sooner. */
const settleMillis = 1_000
/** What the network has not taken yet. More than that is lost, as it is in networks. */
const maxQueuedBytes = 1_048_576
/** These are about one datagram, and the next may well be sent. */
const passing = new Set(['EMSGSIZE', 'ENOBUFS', 'EAGAIN'])

/** What one client and one machine of an app say to each other, by one port that the client sends to. */
export class Flow implements Listed {
  readonly appId: string
  readonly key: string
  readonly listen: DatagramListen
  isProven = false
  private readonly parts: FlowParts
  private readonly client: FlowEnds['client']
  private readonly giveUpAt: number
  private seenAt = Date.now()
  private connectedAt = 0
  private isAnswered = false
  /** The machine has what was sent, and nothing is sent a second time. */
  private isSettled = false
  private isOver = false
  private kept: Buffer[] = []
  private seat: Seat | undefined
  private waiter: Waiter | undefined
  /** Of this flow alone: by its port the program tells clients apart, and we the answers. */
  private upstream: Socket | undefined

  constructor(parts: FlowParts, { appId, key, listen, client }: FlowEnds) {
    this.parts = parts
    this.appId = appId
    this.key = key
    this.listen = listen
    this.client = client
    this.giveUpAt = this.seenAt + parts.balance.waitMillis
  }

  get isWaiting(): boolean {
    return this.waiter !== undefined
  }

  /** Its machine runs still, and is one that clients are led to, unless there is no such. */
  isGood(port: AppPort): boolean {
    const target = this.seat?.target
    if (!target) return true
    if (!this.parts.apps.hasKey(target.key)) return false
    return target.isOpen || !port.targets.some(({ isOpen }) => isOpen)
  }

  /** From the client. */
  send(bytes: Buffer): void {
    this.seenAt = Date.now()
    this.isProven = this.isAnswered
    this.parts.flows.touch(this)
    if (!this.isSettled) this.keep(bytes)
    if (this.connectedAt > 0) this.forward(bytes)
    else if (this.kept.length === 0) this.end()
    else if (!this.seat && !this.waiter) this.seek()
  }

  private keep(bytes: Buffer): void {
    const { kept } = this.parts
    const sum = this.kept.reduce((before, { length }) => before + length, bytes.length)
    if (this.kept.length >= maxKeptOfFlow || sum > maxKeptBytesOfFlow || kept.bytes >= kept.most) return
    this.kept.push(bytes)
    kept.bytes += bytes.length + overheadBytes
  }

  private forgetKept(): void {
    for (const { length } of this.kept) this.parts.kept.bytes -= length + overheadBytes
    this.kept = []
  }

  private seek(): void {
    if (!this.attempt()) this.wait()
  }

  private wait(): void {
    const { balance, waiting } = this.parts
    if (waiting.count >= waiting.most) {
      this.end()
      return
    }
    waiting.count += 1
    this.waiter = {
      appId: this.appId,
      deadline: this.giveUpAt,
      attempt: () => this.attempt(),
      giveUp: () => this.end(),
    }
    balance.wait(this.waiter)
  }

  private waitNoMore(): void {
    if (!this.waiter) return
    this.parts.waiting.count -= 1
    this.parts.balance.cancel(this.waiter)
    this.waiter = undefined
  }

  private attempt(): boolean {
    if (this.isOver) return true
    const { apps, balance } = this.parts
    const app = apps.get(this.appId)
    const port = app?.datagramPorts.get(this.listen.port)
    try {
      const target = port && balance.pick(app!, port, undefined)
      if (port && !target) return false
      this.waitNoMore()
      if (target) this.take(app!, target)
      else this.end()
    } catch {
      this.end()
    }
    return true
  }

  /** Nobody else counts for the limits of the target, so the place is certain. */
  private take(app: AppRoute, target: Target): void {
    this.seat = this.parts.balance.take(
      app,
      target,
      () => undefined,
      () => undefined,
    )
    this.connect(target)
  }

  private connect(target: Target): void {
    const { address, from, port } = target
    if (address === null) {
      this.end()
      return
    }
    const socket = createSocket(address.includes(':') ? 'udp6' : 'udp4')
    this.upstream = socket
    socket.on('error', () => this.refused(socket))
    socket.on('message', (bytes) => this.answer(socket, bytes))
    socket.on('listening', () => socket.connect(port, address))
    socket.on('connect', () => {
      this.connectedAt = Date.now()
      for (const bytes of this.kept) this.forward(bytes)
    })
    socket.bind({ port: 0, ...(from !== undefined && { address: from }) })
  }

  private forward(bytes: Buffer): void {
    const socket = this.upstream!
    if (socket.getSendQueueSize() > maxQueuedBytes) return
    socket.send(bytes, (error) => {
      if (error && !passing.has((error as NodeJS.ErrnoException).code!)) this.refused(socket)
    })
  }

  private answer(socket: Socket, bytes: Buffer): void {
    if (socket !== this.upstream || this.connectedAt === 0) return
    const { client, listen } = this
    this.isAnswered = true
    this.settle()
    if (listen.socket.getSendQueueSize() > maxQueuedBytes) return
    listen.socket.send(bytes, client.port, client.address, () => undefined)
  }

  private settle(): void {
    if (this.isSettled) return
    this.isSettled = true
    this.forgetKept()
    this.parts.balance.succeeded(this.seat!.target)
  }

  /** Nobody listens there, or the machine has gone. What nobody can have got is sent to another one, or later. */
  private refused(socket: Socket): void {
    if (socket !== this.upstream) return
    this.parts.balance.failed(this.seat!.target)
    if (this.isSettled || this.kept.length === 0 || Date.now() >= this.giveUpAt) {
      this.end()
      return
    }
    this.leave()
    this.seek()
  }

  private leave(): void {
    const { upstream, seat } = this
    this.upstream = undefined
    this.seat = undefined
    this.connectedAt = 0
    upstream?.close()
    if (seat) this.parts.balance.leave(seat)
  }

  /** Called once a second, and told whether others wait for a machine of the app. */
  sweep(now: number, isWanted: boolean): void {
    const { apps, idleMillis, idleWantedMillis } = this.parts
    const target = this.seat?.target
    const isInTheWay = isWanted && target !== undefined && target.load >= target.hardLimit
    if (now - this.seenAt >= (isInTheWay ? idleWantedMillis : idleMillis)) this.end()
    else if (target && !apps.hasKey(target.key)) this.end()
    else if (this.connectedAt > 0 && now - this.connectedAt >= settleMillis) this.settle()
  }

  end(): void {
    if (this.isOver) return
    this.isOver = true
    this.parts.flows.remove(this)
    this.waitNoMore()
    this.forgetKept()
    this.leave()
  }
}
