// The platform's API, as machines reach it: at a port of the address that answers names, whichever network they are in.
import { type Socket, SocketAddress } from 'node:net'
import { apiPort, findMachineOf, resolverAddress } from '../../model/network.ts'
import { answerText } from '../http/answer.ts'
import { Relay } from '../http/relay.ts'
import type { UpstreamPool } from '../http/upstream.ts'
import { proxyHeader } from './tunnel.ts'

export interface ApiSettings {
  homeNumber: number
  /** Where the control plane listens for it, on this machine. */
  socket: string
}

export function apiListen({ homeNumber }: ApiSettings): string {
  return `${resolverAddress(homeNumber)} ${apiPort}`
}

export function isApiPlace({ homeNumber }: ApiSettings, address: string, port: number | undefined): boolean {
  if (port !== apiPort) return false
  // As the system writes it.
  return address === new SocketAddress({ address: resolverAddress(homeNumber), family: 'ipv6' }).address
}

export interface ApiParts {
  pool: Pick<UpstreamPool, 'connect'>
  settings: ApiSettings
  nextId(): string
  /** How many connections each address has. */
  open: Map<string, number>
}

/** Of one machine; the others want to be answered too. */
const mostConnections = 64

/** A connection of a machine to the API. What it follows may be silent for as long as it likes. */
export class ApiRelay extends Relay {
  private readonly parts: ApiParts
  private readonly client: string

  constructor(socket: Socket, parts: ApiParts) {
    super(socket, Number.POSITIVE_INFINITY)
    this.parts = parts
    this.client = socket.remoteAddress ?? ''
  }

  start(): void {
    const { pool, settings, open } = this.parts
    const count = open.get(this.client) ?? 0
    // The rules of private networks say the same, but only of what comes from machines.
    if (!findMachineOf(settings.homeNumber, this.client) || count >= mostConnections) {
      this.destroy()
      return
    }
    open.set(this.client, count + 1)
    this.socket.once('close', () => this.leave())
    pool.connect({ address: settings.socket, from: undefined, port: 0, key: 'api' }).then(
      (upstream) => {
        if (this.isOver) upstream.socket.destroy()
        else this.join(upstream, this.source())
      },
      () => this.refuse(),
    )
  }

  private source(): Buffer {
    const { client: address } = this
    const local = resolverAddress(this.parts.settings.homeNumber)
    return proxyHeader(1, { address, local, port: apiPort, secure: false, trusted: false }, 0)
  }

  private leave(): void {
    const { open } = this.parts
    const left = open.get(this.client)! - 1
    if (left > 0) open.set(this.client, left)
    else open.delete(this.client)
  }

  /** What was asked is read and thrown away: the answer would not arrive otherwise. */
  private refuse(): void {
    const body = { error: 'the control plane does not answer; try again shortly' }
    const options = { id: this.parts.nextId(), keepAlive: false, withoutBody: false }
    this.socket.resume()
    this.socket.end(answerText(503, body, '', options), () => this.destroy())
  }
}
