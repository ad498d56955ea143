// Forwards UDP between clients and the machines of apps. It works only on addresses that belong to a single app, because
// nothing in a datagram names the app. One worker handles all UDP ports of an app, so that the datagrams of a client reach
// the same machine and limits need not be divided.
import type { RemoteInfo, Socket } from 'node:dgram'
import type { AppRoute } from '../routing/app.ts'
import type { AppTable } from '../routing/app-table.ts'
import type { LoadBalancer } from '../routing/balancer.ts'
import type { WorkerShare } from '../types.ts'
import { type DatagramListener, Flow, type FlowContext } from './flow.ts'
import { FlowTable } from './flow-table.ts'

export interface DatagramProxyOptions {
  apps: AppTable
  balancer: LoadBalancer
  worker: WorkerShare
  /** Opens a socket at `address port`; undefined when that is not possible now. */
  open(name: string): Promise<Socket | undefined>
  /** Limits the flows, and the ports as well. */
  maxFlows: number
  idleTimeoutMs?: number
  contendedIdleTimeoutMs?: number
}

const defaultIdleTimeoutMs = 60_000
const defaultContendedIdleTimeoutMs = 10_000
const sweepIntervalMs = 1_000
const maxKeptBytes = 16 * 1_048_576
/** A quarter of the requests that may wait for the machines of an app. */
const maxWaiting = 500

export class DatagramProxy {
  private readonly options: DatagramProxyOptions
  private readonly context: FlowContext
  private readonly flows: FlowTable<Flow>
  private readonly listeners = new Map<string, DatagramListener>()
  private readonly opening = new Set<string>()
  private readonly sweeper: NodeJS.Timeout
  private wanted = new Set<string>()
  private isClosed = false

  constructor(options: DatagramProxyOptions) {
    this.options = options
    this.flows = new FlowTable<Flow>(options.maxFlows)
    this.context = {
      apps: options.apps,
      balancer: options.balancer,
      flows: this.flows,
      keptBudget: { usedBytes: 0, maxBytes: maxKeptBytes },
      waiting: { count: 0, max: maxWaiting },
      idleTimeoutMs: options.idleTimeoutMs ?? defaultIdleTimeoutMs,
      contendedIdleTimeoutMs: options.contendedIdleTimeoutMs ?? defaultContendedIdleTimeoutMs,
    }
    this.sweeper = setInterval(() => this.sweep(), sweepIntervalMs)
  }

  /** Opens and closes sockets according to the routes; ports that could not be opened are tried again. */
  update(): void {
    if (this.isClosed) return
    const { apps, worker, maxFlows } = this.options
    this.wanted = new Set(listDatagramListens(apps.all(), worker).slice(0, maxFlows))
    for (const [name, listener] of this.listeners) if (!this.wanted.has(name)) this.shut(name, listener)
    for (const name of this.wanted) if (!this.listeners.has(name) && !this.opening.has(name)) this.open(name)
  }

  private async open(name: string): Promise<void> {
    this.opening.add(name)
    const socket = await this.options.open(name)
    this.opening.delete(name)
    if (!socket) return
    const [address = '', port] = name.split(' ')
    const listener = { address, port: Number(port), socket }
    socket.on('error', () => undefined)
    socket.on('message', (bytes, from) => this.receive(listener, bytes, from))
    this.listeners.set(name, listener)
    if (!this.wanted.has(name)) this.shut(name, listener)
  }

  private shut(name: string, listener: DatagramListener): void {
    this.listeners.delete(name)
    for (const flow of this.flows.all()) if (flow.listener === listener) flow.end()
    listener.socket.close()
  }

  private receive(listener: DatagramListener, bytes: Buffer, { address, port }: RemoteInfo): void {
    const app = this.options.apps.findAddress(listener.address)
    const appPort = app?.datagramPorts.get(listener.port)
    // Only forged datagrams come from port 0, and nothing can be sent back to it.
    if (!app || !appPort || port === 0) return
    const key = `${address} ${port} ${listener.address} ${listener.port}`
    const known = this.flows.find(app.id, key)
    if (known?.isUsable(appPort)) {
      known.send(bytes)
      return
    }
    known?.end()
    const flow = new Flow(this.context, { appId: app.id, key, listener, client: { address, port } })
    this.flows.add(flow)
    flow.send(bytes)
  }

  private sweep(): void {
    const now = Date.now()
    const contendedApps = new Set<string>()
    for (const flow of this.flows.all()) if (flow.isWaiting) contendedApps.add(flow.appId)
    for (const flow of this.flows.all()) flow.sweep(now, contendedApps.has(flow.appId))
  }

  /** Whether it has no ports. */
  get isIdle(): boolean {
    return this.listeners.size === 0
  }

  close(): void {
    this.isClosed = true
    this.wanted = new Set()
    clearInterval(this.sweeper)
    for (const [name, listener] of this.listeners) this.shut(name, listener)
  }
}

/** The sockets that this worker receives datagrams on, as `address port`. */
export function listDatagramListens(apps: Iterable<AppRoute>, { index, count }: WorkerShare): string[] {
  const found: string[] = []
  for (const { id, addresses, datagramPorts } of apps) {
    if (datagramPorts.size === 0 || hashId(id) % count !== index) continue
    for (const address of addresses) for (const port of datagramPorts.keys()) found.push(`${address} ${port}`)
  }
  return found.sort()
}

/** All workers compute the same value, so exactly one of them handles an app. */
function hashId(id: string): number {
  let value = 0
  for (const letter of id) value = (value * 31 + letter.charCodeAt(0)) % 1_000_003
  return value
}
