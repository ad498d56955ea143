import type { Socket } from 'node:net'
import { parseMachineAddress } from '../../model/network.ts'
import type { DatabaseRoute, DatabaseTable } from '../routing/database.ts'
import { Relay } from './relay.ts'
import type { UpstreamPool } from './upstream-pool.ts'

export interface DatabaseSettings {
  homeNumber: number
  /** The address on this host that clusters listen on. */
  host: string
}

export interface DatabaseContext {
  table: DatabaseTable
  pool: Pick<UpstreamPool, 'connect'>
  settings: DatabaseSettings
}

/** A connection of a machine to a cluster. It has no idle timeout: TCP keepalive finds dead connections. */
export class DatabaseRelay extends Relay {
  private readonly context: DatabaseContext
  private readonly route: DatabaseRoute
  private readonly client: string

  constructor(socket: Socket, context: DatabaseContext, route: DatabaseRoute) {
    super(socket, Number.POSITIVE_INFINITY)
    this.context = context
    this.route = route
    this.client = socket.remoteAddress ?? ''
  }

  /** The packet filter checks this as well, but only for packets of machines; processes of the host are checked here. */
  private isAllowed(): boolean {
    const { table, settings } = this.context
    const machine = parseMachineAddress(settings.homeNumber, this.client)
    const route = table.find(this.route.address)
    return route?.port === this.route.port && machine?.networkNumber === route.networkNumber
  }

  start(): void {
    const { clusterId, endpoint, port } = this.route
    if (!this.isAllowed()) {
      this.destroy()
      return
    }
    const key = `${clusterId} ${endpoint}`
    this.context.pool.connect({ address: this.context.settings.host, localAddress: undefined, port, key }).then(
      (upstream) => {
        if (this.isOver) upstream.socket.destroy()
        else this.join(upstream)
      },
      () => this.destroy(),
    )
  }

  /** Also closes the connection when the machine loses its access to the cluster. */
  override sweep(now: number): void {
    if (this.isAllowed()) super.sweep(now)
    else this.destroy()
  }
}
