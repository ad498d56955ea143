// The sockets that take connections and datagrams for apps, at the addresses that apps were given. What cannot be bound
// now, because an address is not of this machine or a port is taken or forbidden, is tried again later.
import { createSocket, type Socket as PacketSocket } from 'node:dgram'
import { type BlockList, createServer, isIPv4, type Server, type Socket } from 'node:net'
import { networkInterfaces } from 'node:os'
import type { Logger } from 'pino'
import { run } from '../../drivers/host/process.ts'

export interface Listens {
  /** Listens exactly there from now on, as `address port`. */
  set(wanted: string[]): void
  /** For datagrams, at one of these addresses, and for whoever asks to read. Undefined when it cannot be had now. */
  bind(name: string): Promise<PacketSocket | undefined>
  close(): Promise<void>
}

const retryMillis = 5_000
/** Beyond them nothing more is bound: each takes a file. */
const maxListens = 4_096

export interface ListenOptions {
  hand(socket: Socket): void
  /** Networks whose addresses may be put in place. */
  pools(): BlockList
  log: Logger
}

export function openListens({ hand, pools, log }: ListenOptions): Listens {
  const servers = new Map<string, Server | undefined>()
  /** Addresses that this process has put in place. */
  const placed = new Set<string>()
  const failed = new Set<string>()
  let wanted = new Set<string>()
  let turn = Promise.resolve()
  let timer: NodeJS.Timeout | undefined

  async function settle(): Promise<void> {
    clearTimeout(timer)
    for (const [name, server] of servers) {
      if (wanted.has(name)) continue
      servers.delete(name)
      server?.close()
    }
    const used = new Set([...wanted].map((name) => name.split(' ')[0]!))
    for (const address of placed) if (!used.has(address)) await withdraw(address)
    for (const address of used) await place(address)
    const results = await Promise.all([...wanted].map((name) => open(name)))
    if (results.includes(false)) timer = setTimeout(next, retryMillis)
  }

  async function open(name: string): Promise<boolean> {
    if (servers.get(name)) return true
    const server = await attempt(name, 'tcp', (host, port) => listen({ host, port }, hand))
    if (server && wanted.has(name)) servers.set(name, server)
    else server?.close()
    return server !== undefined
  }

  /** What does not succeed is told of once. */
  async function attempt<T>(
    name: string,
    protocol: 'tcp' | 'udp',
    take: (host: string, port: number) => Promise<T>,
  ): Promise<T | undefined> {
    const [host = '', port = ''] = name.split(' ')
    try {
      const taken = await take(host, Number(port))
      failed.delete(`${protocol} ${name}`)
      return taken
    } catch (err) {
      if (!failed.has(`${protocol} ${name}`))
        log.warn({ err, address: host, port: Number(port), protocol }, 'cannot listen there yet')
      failed.add(`${protocol} ${name}`)
      return undefined
    }
  }

  /** On the loopback interface, unless this machine has it. Only addresses that are for apps. */
  async function place(address: string): Promise<void> {
    if (
      placed.has(address) ||
      address.startsWith('127.') ||
      isOurs(address) ||
      !pools().check(address, isIPv4(address) ? 'ipv4' : 'ipv6')
    )
      return
    const options = isIPv4(address) ? [`${address}/32`, 'dev', 'lo'] : [`${address}/128`, 'dev', 'lo', 'nodad']
    await run('ip', ['addr', 'add', ...options]).then(
      () => placed.add(address),
      (err) => log.warn({ err, address }, 'cannot put an address in place'),
    )
  }

  async function withdraw(address: string): Promise<void> {
    placed.delete(address)
    await run('ip', ['addr', 'del', `${address}/${isIPv4(address) ? 32 : 128}`, 'dev', 'lo']).catch(() => undefined)
  }

  function next(): void {
    turn = turn.then(settle).catch((err) => log.error({ err }, 'cannot listen as asked'))
  }

  return {
    set(names) {
      wanted = new Set(names.slice(0, maxListens))
      next()
    },
    async bind(name) {
      await turn // which puts addresses in place
      return attempt(name, 'udp', bindDatagrams)
    },
    async close() {
      wanted = new Set()
      next()
      await turn
      clearTimeout(timer)
    },
  }
}

function isOurs(address: string): boolean {
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

/** Who replaces the reader of it asks for one before that has gone. */
function bindDatagrams(address: string, port: number): Promise<PacketSocket> {
  const { promise, resolve, reject } = Promise.withResolvers<PacketSocket>()
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
