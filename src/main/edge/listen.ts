// The sockets for the addresses of apps. One that cannot be bound, because the address is not on this host or the port is
// taken or forbidden, is tried again later.
import { createSocket, type Socket as UdpSocket } from 'node:dgram'
import { type BlockList, createServer, isIPv4, type Server, type Socket } from 'node:net'
import { networkInterfaces } from 'node:os'
import type { Logger } from 'pino'
import { run } from '../../drivers/host/process.ts'

export interface AppListeners {
  /** Listens on exactly these TCP sockets from now on, given as `address port`. */
  set(names: string[]): void
  /** Binds a UDP socket at `address port`; undefined when that is not possible now. */
  bindDatagrams(name: string): Promise<UdpSocket | undefined>
  close(): Promise<void>
}

const retryDelayMs = 5_000
/** Each socket takes a file descriptor. */
const maxListeners = 4_096

export interface AppListenerOptions {
  hand(socket: Socket): void
  /** Networks whose addresses may be added to the loopback interface. */
  pools(): BlockList
  log: Logger
}

export function openAppListeners({ hand, pools, log }: AppListenerOptions): AppListeners {
  const servers = new Map<string, Server>()
  const addresses = new LoopbackAddresses(pools, log)
  const attempts = new BindAttempts(log)
  let wanted = new Set<string>()
  /** Changes are applied one after another. */
  let queue = Promise.resolve()
  let retryTimer: NodeJS.Timeout | undefined

  async function apply(): Promise<void> {
    clearTimeout(retryTimer)
    for (const [name, server] of servers) {
      if (wanted.has(name)) continue
      servers.delete(name)
      server.close()
    }
    await addresses.set(new Set([...wanted].map((name) => name.split(' ')[0]!)))
    const results = await Promise.all([...wanted].map((name) => open(name)))
    if (results.includes(false)) retryTimer = setTimeout(enqueue, retryDelayMs)
  }

  async function open(name: string): Promise<boolean> {
    if (servers.has(name)) return true
    const server = await attempts.run(name, 'tcp', (host, port) => listen({ host, port }, hand))
    if (server && wanted.has(name)) servers.set(name, server)
    else server?.close()
    return server !== undefined
  }

  function enqueue(): void {
    queue = queue.then(apply).catch((err) => log.error({ err }, 'updating the listeners of apps failed'))
  }

  return {
    set(names) {
      wanted = new Set(names.slice(0, maxListeners))
      enqueue()
    },
    async bindDatagrams(name) {
      await queue // the address may have to be added first
      return attempts.run(name, 'udp', bindUdp)
    },
    async close() {
      wanted = new Set()
      enqueue()
      await queue
      clearTimeout(retryTimer)
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

export function listen(address: { host: string; port: number }, hand: (socket: Socket) => void): Promise<Server> {
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
