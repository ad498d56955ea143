// The sockets for the addresses of apps. One that cannot be bound, because the address is not on this host or the port is
// taken or forbidden, is tried again later.
import { createSocket, type Socket as UdpSocket } from 'node:dgram'
import { type BlockList, createServer, isIPv4, type Server, type Socket } from 'node:net'
import { networkInterfaces } from 'node:os'
import type { Logger } from 'pino'
import { run } from '../../drivers/host/process.ts'
import type { SocketHolder } from './socket-holder.ts'

export interface AppListeners {
  /** Listens on exactly these TCP sockets from now on, given as `address port`. */
  set(names: string[]): void
  /** Closes the sockets that the shared address includes now, and opens those that it does not include any more. */
  update(): Promise<void>
  /** Binds a UDP socket at `address port`; undefined when that is not possible now. */
  bindDatagrams(name: string): Promise<UdpSocket | undefined>
  /** The holder keeps the sockets for the next process. */
  close(): Promise<void>
}

const retryDelayMs = 5_000
/** Each socket takes a file descriptor. */
const maxListeners = 4_096

export interface AppListenerOptions {
  hand(socket: Socket): void
  /** Networks whose addresses may be added to the loopback interface. */
  pools(): BlockList
  /** Whether the shared address is a wildcard that includes this one. */
  isShared(host: string, port: number): boolean
  holder: SocketHolder
  log: Logger
}

const heldNamePrefix = 'app '

export function openAppListeners({ hand, pools, isShared, holder, log }: AppListenerOptions): AppListeners {
  const servers = new Map<string, Server>()
  const addresses = new LoopbackAddresses(pools, log)
  const attempts = new BindAttempts(log)
  /** Undefined until the apps are known. The sockets of the previous process stay open until then. */
  let wanted: Set<string> | undefined
  /** Changes are applied one after another. */
  let queue = Promise.resolve()
  let retryTimer: NodeJS.Timeout | undefined

  async function apply(): Promise<void> {
    clearTimeout(retryTimer)
    for (const [name, server] of servers) if (!isNeeded(name)) close(name, server)
    holder.discard((held) => held.startsWith(heldNamePrefix) && !isNeeded(held.slice(heldNamePrefix.length)))
    await holder.sync() // what the holder still has cannot be bound again
    if (!wanted) return
    await addresses.set(new Set([...wanted].map((name) => name.split(' ')[0]!)))
    const results = await Promise.all([...wanted].filter(isNeeded).map((name) => open(name)))
    if (results.includes(false)) retryTimer = setTimeout(enqueue, retryDelayMs)
    await holder.sync()
  }

  function isNeeded(name: string): boolean {
    const [host = '', port] = name.split(' ')
    return (wanted?.has(name) ?? true) && !isShared(host, Number(port))
  }

  function close(name: string, server: Server): void {
    servers.delete(name)
    holder.remove(server)
    server.close()
  }

  async function open(name: string): Promise<boolean> {
    if (servers.has(name)) return true
    const server = await attempts.run(name, 'tcp', (host, port) =>
      listen(holder, { name: heldNamePrefix + name, host, port }, hand),
    )
    if (server) servers.set(name, server) // if it is not wanted any more, the next change in the queue closes it
    return server !== undefined
  }

  function enqueue(): Promise<void> {
    queue = queue.then(apply).catch((err) => log.error({ err }, 'updating the listeners of apps failed'))
    return queue
  }

  return {
    set(names) {
      wanted = new Set(names.slice(0, maxListeners))
      enqueue()
    },
    update: enqueue,
    async bindDatagrams(name) {
      await queue // the address may have to be added first
      return attempts.run(name, 'udp', bindUdp)
    },
    async close() {
      await queue
      clearTimeout(retryTimer)
      for (const server of servers.values()) server.close()
      await addresses.set(new Set())
    },
  }
}

/** Runs attempts to bind a socket, and logs the first failure of each. */
class BindAttempts {
  private readonly log: Logger
  private readonly failed = new Set<string>()

  constructor(log: Logger) {
    this.log = log
  }

  async run<T>(
    name: string,
    protocol: 'tcp' | 'udp',
    bind: (host: string, port: number) => Promise<T>,
  ): Promise<T | undefined> {
    const [host = '', port = ''] = name.split(' ')
    const key = `${protocol} ${name}`
    try {
      const bound = await bind(host, Number(port))
      this.failed.delete(key)
      return bound
    } catch (err) {
      const details = { err, address: host, port: Number(port), protocol }
      if (!this.failed.has(key)) this.log.warn(details, 'cannot listen on an address of an app; trying again')
      this.failed.add(key)
      return undefined
    }
  }
}

/** Adds addresses of apps to the loopback interface, if they are in a pool and the host does not have them. */
class LoopbackAddresses {
  private readonly pools: () => BlockList
  private readonly log: Logger
  /** The addresses that this process has added. */
  private readonly added = new Set<string>()

  constructor(pools: () => BlockList, log: Logger) {
    this.pools = pools
    this.log = log
  }

  async set(used: Set<string>): Promise<void> {
    for (const address of this.added) if (!used.has(address)) await this.remove(address)
    for (const address of used) await this.add(address)
  }

  private async add(address: string): Promise<void> {
    if (this.added.has(address) || address.startsWith('127.') || isOnHost(address)) return
    if (!this.pools().check(address, isIPv4(address) ? 'ipv4' : 'ipv6')) return
    const options = isIPv4(address) ? [`${address}/32`, 'dev', 'lo'] : [`${address}/128`, 'dev', 'lo', 'nodad']
    await run('ip', ['addr', 'add', ...options]).then(
      () => this.added.add(address),
      (err) => this.log.warn({ err, address }, 'cannot add an address to the loopback interface'),
    )
  }

  private async remove(address: string): Promise<void> {
    this.added.delete(address)
    await run('ip', ['addr', 'del', `${address}/${isIPv4(address) ? 32 : 128}`, 'dev', 'lo']).catch(() => undefined)
  }
}

function isOnHost(address: string): boolean {
  return Object.values(networkInterfaces()).some((each) => each?.some((found) => found.address === address))
}

export interface ListenAddress {
  /** The name under which the socket is held. */
  name: string
  host: string
  port: number
}

/** Continues with the socket of the previous process, or else binds a new one. */
export async function listen(
  holder: SocketHolder,
  { name, host, port }: ListenAddress,
  hand: (socket: Socket) => void,
): Promise<Server> {
  const descriptor = holder.find(name)
  try {
    const server = await startServer(descriptor === undefined ? { host, port } : { fd: descriptor }, hand)
    holder.add(name, server)
    return server
  } catch (error) {
    holder.forget(name)
    throw error
  }
}

function startServer(address: { host: string; port: number } | { fd: number }, hand: (socket: Socket) => void) {
  const { promise, resolve, reject } = Promise.withResolvers<Server>()
  const options = { pauseOnConnect: true, noDelay: true, keepAlive: true, keepAliveInitialDelay: 60_000 }
  const server = createServer(options, (socket) => {
    socket.on('error', () => {})
    hand(socket)
  })
  server.once('error', reject)
  server.listen({ ...address, backlog: 4096 }, () => resolve(server))
  return promise
}

/** The port is shared, because a new worker binds it before the old one has closed it. */
function bindUdp(address: string, port: number): Promise<UdpSocket> {
  const { promise, resolve, reject } = Promise.withResolvers<UdpSocket>()
  const type = isIPv4(address) ? 'udp4' : 'udp6'
  const socket = createSocket({ type, reusePort: true, recvBufferSize: 1_048_576 })
  socket.once('error', (error) => {
    socket.close()
    reject(error)
  })
  socket.bind({ address, port }, () => {
    socket.removeAllListeners('error').on('error', () => undefined)
    resolve(socket)
  })
  return promise
}
