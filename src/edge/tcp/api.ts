// The platform's API as machines reach it: on a port of the name server's address, in every private network.
import { type Socket, SocketAddress } from 'node:net'
import { apiPort, parseMachineAddress, resolverAddress } from '../../model/network.ts'
import { proxyHeader } from './proxy-protocol.ts'
import { Relay } from './relay.ts'
import type { UpstreamPool } from './upstream-pool.ts'

export interface ApiSettings {
  homeNumber: number
  /** The Unix socket of the control plane. */
  socket: string
}

/** The socket to listen on, as `address port`. */
export function apiListen({ homeNumber }: ApiSettings): string {
  return `${resolverAddress(homeNumber)} ${apiPort}`
}

export function isApiEndpoint({ homeNumber }: ApiSettings, address: string, port: number | undefined): boolean {
  if (port !== apiPort) return false
  // SocketAddress gives the same notation as `socket.localAddress`.
  return address === new SocketAddress({ address: resolverAddress(homeNumber), family: 'ipv6' }).address
}

export interface ApiContext {
  pool: Pick<UpstreamPool, 'connect'>
  settings: ApiSettings
  /** The number of connections of each client address. */
  connections: Map<string, number>
  /** The HTTP response for when the control plane does not accept a connection. */
  unavailableResponse(): string
}

/** Keeps one machine from using up the connections of all. */
const maxConnectionsPerClient = 64

/** A connection of a machine to the API. It has no idle timeout, because followed logs and events may pause for long. */
export class ApiRelay extends Relay {
  private readonly context: ApiContext
  private readonly client: string

  constructor(socket: Socket, context: ApiContext) {
    super(socket, Number.POSITIVE_INFINITY)
    this.context = context
    this.client = socket.remoteAddress ?? ''
  }

  start(): void {
    const { pool, settings, connections } = this.context
    const count = connections.get(this.client) ?? 0
    // The packet filter checks this as well, but only for packets of machines; processes of the host are checked here.
    if (!parseMachineAddress(settings.homeNumber, this.client) || count >= maxConnectionsPerClient) {
      this.destroy()
      return
    }
    connections.set(this.client, count + 1)
    this.socket.once('close', () => this.uncount())
    pool.connect({ address: settings.socket, localAddress: undefined, port: 0, key: 'api' }).then(
      (upstream) => {
        if (this.isOver) upstream.socket.destroy()
        else this.join(upstream, this.clientHeader())
      },
      () => this.refuse(),
    )
  }

  private clientHeader(): Buffer {
    const { client: address } = this
    const localAddress = resolverAddress(this.context.settings.homeNumber)
    return proxyHeader(1, { address, localAddress, port: apiPort, secure: false, trusted: false }, 0)
  }

  private uncount(): void {
    const { connections } = this.context
    const left = connections.get(this.client)! - 1
    if (left > 0) connections.set(this.client, left)
    else connections.delete(this.client)
  }

  /** Reads and discards the request, because closing with unread data would reset the connection and lose the response. */
  private refuse(): void {
    this.socket.resume()
    this.socket.end(this.context.unavailableResponse(), () => this.destroy())
  }
}
