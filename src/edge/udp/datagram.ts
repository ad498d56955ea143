// Carries datagrams between clients and the machines of apps, at the addresses that apps have for themselves: nothing in a
// datagram says which of several apps it is for. One worker does it for all ports of an app, so that whatever a client
// sends comes to the same, and limits are whole.
import type { RemoteInfo, Socket } from 'node:dgram'
import type { AppOptions, AppRoute } from '../routing/app.ts'
import type { Balance } from '../routing/balance.ts'
import type { AppTable } from '../routing/route.ts'
import { type DatagramListen, Flow, type FlowParts } from './flow.ts'
import { FlowTable } from './flow-table.ts'

export interface DatagramOptions {
  apps: AppTable
  balance: Balance
  worker: AppOptions['worker']
  /** A socket at this place, `address port`; undefined when there can be none now. */
  open(name: string): Promise<Socket | undefined>
  /** And ports for them. */
  maxFlows: number
  idleMillis?: number
  idleWantedMillis?: number
}

export interface Datagrams {
  /** The routes have changed, or some time has passed: listens where it has to. */
  look(): void
  close(): void
}

const defaultIdleMillis = 60_000
const defaultIdleWantedMillis = 10_000
const sweepMillis = 1_000
const maxKeptBytes = 16 * 1_048_576
/** A quarter of all that may wait for machines of an app. */
const maxWaiting = 500

export function createDatagrams(options: DatagramOptions): Datagrams {
  const { apps, balance, worker, open, maxFlows } = options
  const listens = new Map<string, DatagramListen>()
  const opening = new Set<string>()
  const flows = new FlowTable<Flow>(maxFlows)
  const parts: FlowParts = {
    apps,
    balance,
    flows,
    kept: { bytes: 0, most: maxKeptBytes },
    waiting: { count: 0, most: maxWaiting },
    idleMillis: options.idleMillis ?? defaultIdleMillis,
    idleWantedMillis: options.idleWantedMillis ?? defaultIdleWantedMillis,
  }
  let wanted = new Set<string>()
  let isClosed = false

  function look(): void {
    if (isClosed) return
    wanted = new Set(datagramListensOf(apps.all(), worker).slice(0, maxFlows))
    for (const [name, listen] of listens) if (!wanted.has(name)) shut(name, listen)
    for (const name of wanted) if (!listens.has(name) && !opening.has(name)) start(name)
  }

  async function start(name: string): Promise<void> {
    opening.add(name)
    const socket = await open(name)
    opening.delete(name)
    if (!socket) return
    const [address = '', port] = name.split(' ')
    const listen = { address, port: Number(port), socket }
    socket.on('error', () => undefined)
    socket.on('message', (bytes, from) => receive(listen, bytes, from))
    listens.set(name, listen)
    if (!wanted.has(name)) shut(name, listen)
  }

  function shut(name: string, listen: DatagramListen): void {
    listens.delete(name)
    for (const flow of flows.all()) if (flow.listen === listen) flow.end()
    listen.socket.close()
  }

  function receive(listen: DatagramListen, bytes: Buffer, { address, port }: RemoteInfo): void {
    const app = apps.findAddress(listen.address)
    const offered = app?.datagramPorts.get(listen.port)
    // Nothing can be sent back to port 0, which only forged datagrams come from.
    if (!app || !offered || port === 0) return
    const key = `${address} ${port} ${listen.address} ${listen.port}`
    const known = flows.find(app.id, key)
    if (known?.isGood(offered)) {
      known.send(bytes)
      return
    }
    known?.end()
    const flow = new Flow(parts, { appId: app.id, key, listen, client: { address, port } })
    flows.add(flow)
    flow.send(bytes)
  }

  const sweeper = setInterval(() => {
    const now = Date.now()
    const waiting = new Set<string>()
    for (const flow of flows.all()) if (flow.isWaiting) waiting.add(flow.appId)
    for (const flow of flows.all()) flow.sweep(now, waiting.has(flow.appId))
  }, sweepMillis)

  return {
    look,
    close() {
      isClosed = true
      wanted = new Set()
      clearInterval(sweeper)
      for (const [name, listen] of listens) shut(name, listen)
    },
  }
}

/** Where this worker takes datagrams, as `address port`. */
export function datagramListensOf(apps: Iterable<AppRoute>, { index, count }: AppOptions['worker']): string[] {
  const found: string[] = []
  for (const { id, addresses, datagramPorts } of apps) {
    if (datagramPorts.size === 0 || numberOf(id) % count !== index) continue
    for (const address of addresses) for (const port of datagramPorts.keys()) found.push(`${address} ${port}`)
  }
  return found.sort()
}

/** The same in all workers. */
function numberOf(id: string): number {
  let number = 0
  for (const letter of id) number = (number * 31 + letter.charCodeAt(0)) % 1_000_003
  return number
}
