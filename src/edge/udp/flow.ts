import { createSocket, type Socket } from 'node:dgram'
import type { AppRoute } from '../routing/app.ts'
import type { AppPort } from '../routing/app-port.ts'
import type { AppTable } from '../routing/app-table.ts'
import type { LoadBalancer, Reservation, Waiter } from '../routing/balancer.ts'
import type { Target } from '../routing/target.ts'
import type { ByteBudget } from '../types.ts'
import type { FlowTable, TableFlow } from './flow-table.ts'
import { KeptDatagrams } from './kept-datagrams.ts'

export interface FlowContext {
  apps: AppTable
  balancer: LoadBalancer
  flows: FlowTable<Flow>
  /** Memory for datagrams that wait or may have to be sent again. */
  keptBudget: ByteBudget
  /** Flows without a machine, which share the queue of the app with its requests. */
  waiting: { count: number; max: number }
  /** A flow ends after this time without a datagram of the client. */
  idleTimeoutMs: number
  /** The shorter timeout for when other flows wait for a machine at its limit. */
  contendedIdleTimeoutMs: number
}

/** The socket that a client sends to, and that responses come from. */
export interface DatagramListener {
  address: string
  port: number
  socket: Socket
}

export interface FlowOptions {
  appId: string
  key: string
  listener: DatagramListener
  client: { address: string; port: number }
}

/** Without an error for this long, the machine counts as having received the datagrams. */
const settleMs = 1_000
/** Datagrams are dropped when the send queue is longer, as networks do. */
const maxQueuedBytes = 1_048_576
/** Errors that concern a single datagram, not the flow. */
const transientErrors = new Set(['EMSGSIZE', 'ENOBUFS', 'EAGAIN'])

/** The datagrams between one client and one machine of an app, over one port. */
export class Flow implements TableFlow {
  readonly appId: string
  readonly key: string
  readonly listener: DatagramListener
  isProven = false
  private readonly context: FlowContext
  private readonly client: FlowOptions['client']
  private readonly kept: KeptDatagrams
  private readonly deadline: number
  private lastSeenAt = Date.now()
  private connectedAt = 0
  private hasResponse = false
  /** The machine has received datagrams, so nothing is sent a second time. */
  private isSettled = false
  private isOver = false
  private reservation: Reservation | undefined
  private waiter: Waiter | undefined
  /** Each flow has its own socket: the program tells clients apart by its port, and responses arrive on it. */
  private upstream: Socket | undefined

  constructor(context: FlowContext, { appId, key, listener, client }: FlowOptions) {
    this.context = context
    this.appId = appId
    this.key = key
    this.listener = listener
    this.client = client
    this.kept = new KeptDatagrams(context.keptBudget)
    this.deadline = this.lastSeenAt + context.balancer.waitTimeoutMs
  }

  get isWaiting(): boolean {
    return this.waiter !== undefined
  }

  /** False when the flow should move to another machine: its own is gone, or is closed while others are open. */
  isUsable(port: AppPort): boolean {
    const target = this.reservation?.target
    if (!target) return true
    if (!this.context.apps.hasKey(target.key)) return false
    return target.isOpen || !port.targets.some(({ isOpen }) => isOpen)
  }

  /** Sends a datagram of the client to the machine. */
  send(bytes: Buffer): void {
    this.lastSeenAt = Date.now()
    this.isProven = this.hasResponse
    this.context.flows.touch(this)
    if (!this.isSettled) this.kept.add(bytes)
    if (this.connectedAt > 0) this.forward(bytes)
    else if (this.kept.isEmpty) this.end()
    else if (!this.reservation && !this.waiter) this.search()
  }

  private search(): void {
    if (!this.attempt()) this.wait()
  }

  private wait(): void {
    const { balancer, waiting } = this.context
    if (waiting.count >= waiting.max) {
      this.end()
      return
    }
    waiting.count += 1
    this.waiter = {
      appId: this.appId,
      deadline: this.deadline,
      attempt: () => this.attempt(),
      giveUp: () => this.end(),
    }
    balancer.enqueue(this.waiter)
  }

  private stopWaiting(): void {
    if (!this.waiter) return
    this.context.waiting.count -= 1
    this.context.balancer.cancel(this.waiter)
    this.waiter = undefined
  }

  /** Returns false when no machine is available yet. */
  private attempt(): boolean {
    if (this.isOver) return true
    const { apps, balancer } = this.context
    const app = apps.get(this.appId)
    const port = app?.datagramPorts.get(this.listener.port)
    try {
      const target = port && balancer.pick(app!, port, undefined)
      if (port && !target) return false
      this.stopWaiting()
      if (target) this.reserve(app!, target)
      else this.end()
    } catch {
      this.end()
    }
    return true
  }

  /** UDP targets need no permit, so the reservation is effective at once. */
  private reserve(app: AppRoute, target: Target): void {
    const ignore = () => undefined
    this.reservation = this.context.balancer.reserve(app, target, ignore, ignore)
    this.connect(target)
  }

  private connect({ address, localAddress, port }: Target): void {
    if (address === null) {
      this.end()
      return
    }
    const socket = createSocket(address.includes(':') ? 'udp6' : 'udp4')
    this.upstream = socket
    socket.on('error', () => this.onRefused(socket))
    socket.on('message', (bytes) => this.respond(socket, bytes))
    socket.on('listening', () => socket.connect(port, address))
    socket.on('connect', () => {
      this.connectedAt = Date.now()
      for (const bytes of this.kept.all()) this.forward(bytes)
    })
    socket.bind({ port: 0, ...(localAddress !== undefined && { address: localAddress }) })
  }

  private forward(bytes: Buffer): void {
    const socket = this.upstream!
    if (socket.getSendQueueSize() > maxQueuedBytes) return
    socket.send(bytes, (error) => {
      if (error && !transientErrors.has((error as NodeJS.ErrnoException).code!)) this.onRefused(socket)
    })
  }

  private respond(upstream: Socket, bytes: Buffer): void {
    if (upstream !== this.upstream || this.connectedAt === 0) return
    const { client } = this
    const { socket } = this.listener
    this.hasResponse = true
    this.settle()
    if (socket.getSendQueueSize() > maxQueuedBytes) return
    socket.send(bytes, client.port, client.address, () => undefined)
  }

  private settle(): void {
    if (this.isSettled) return
    this.isSettled = true
    this.kept.clear()
    this.context.balancer.connectSucceeded(this.reservation!.target)
  }

  /** Nothing listens on the port, or the machine is gone. Datagrams that were not received go to another machine. */
  private onRefused(socket: Socket): void {
    if (socket !== this.upstream) return
    this.context.balancer.connectFailed(this.reservation!.target)
    if (this.isSettled || this.kept.isEmpty || Date.now() >= this.deadline) {
      this.end()
      return
    }
    this.leaveMachine()
    this.search()
  }

  private leaveMachine(): void {
    const { upstream, reservation } = this
    this.upstream = undefined
    this.reservation = undefined
    this.connectedAt = 0
    upstream?.close()
    if (reservation) this.context.balancer.release(reservation)
  }

  /** Enforces the timeouts; called once a second. `isContended`: other flows wait for a machine of the app. */
  sweep(now: number, isContended: boolean): void {
    const { apps, idleTimeoutMs, contendedIdleTimeoutMs } = this.context
    const target = this.reservation?.target
    const blocksOthers = isContended && target !== undefined && target.load >= target.hardLimit
    if (now - this.lastSeenAt >= (blocksOthers ? contendedIdleTimeoutMs : idleTimeoutMs)) this.end()
    else if (target && !apps.hasKey(target.key)) this.end()
    else if (this.connectedAt > 0 && now - this.connectedAt >= settleMs) this.settle()
  }

  end(): void {
    if (this.isOver) return
    this.isOver = true
    this.context.flows.remove(this)
    this.stopWaiting()
    this.kept.clear()
    this.leaveMachine()
  }
}
