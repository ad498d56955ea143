// Clusters, as machines of their organization reach them: each has addresses of its own in their private networks.
import { type Socket, SocketAddress } from 'node:net'
import { databaseAddress, findMachineOf } from '../../model/network.ts'
import { type ClusterEndpoint, clusterEndpoints, privateNames, privatePort } from '../../model/postgres/cluster.ts'
import type { ClusterRoute } from '../../store/postgres/route.ts'
import { Relay } from '../http/relay.ts'
import type { UpstreamPool } from '../http/upstream.ts'

export interface DatabaseSettings {
  homeNumber: number
  /** Where clusters listen on this machine. */
  host: string
}

export interface DatabaseRoute {
  clusterId: string
  endpoint: ClusterEndpoint
  networkNumber: number
  name: string
  /** As the system writes it. */
  address: string
  /** On this machine. */
  port: number
}

export class DatabaseTable {
  private byAddress = new Map<string, DatabaseRoute>()

  fill(routes: DatabaseRoute[]): void {
    this.byAddress = new Map(routes.map((route) => [route.address, route]))
  }

  find(address: string): DatabaseRoute | undefined {
    return this.byAddress.get(address)
  }

  /** Where connections arrive, as `address port`. */
  listens(): string[] {
    return [...this.byAddress.keys()].map((address) => `${address} ${privatePort}`)
  }
}

export function databaseRoutesOf(cluster: ClusterRoute, homeNumber: number): DatabaseRoute[] {
  const names = privateNames(cluster.id)
  const ports = { pooler: cluster.poolerPort, direct: cluster.directPort }
  return cluster.networks.flatMap((networkNumber) =>
    clusterEndpoints.map((endpoint) => ({
      clusterId: cluster.id,
      endpoint,
      networkNumber,
      name: names[endpoint],
      address: shortened(databaseAddress(homeNumber, networkNumber, cluster.number, endpoint)),
      port: ports[endpoint],
    })),
  )
}

function shortened(address: string): string {
  return new SocketAddress({ address, family: 'ipv6' }).address
}

export interface DatabaseParts {
  table: DatabaseTable
  pool: Pick<UpstreamPool, 'connect'>
  settings: DatabaseSettings
}

/** A connection of a machine to a cluster. It may be idle for as long as it likes: those that are dead are found by TCP. */
export class DatabaseRelay extends Relay {
  private readonly parts: DatabaseParts
  private readonly route: DatabaseRoute
  private readonly client: string

  constructor(socket: Socket, parts: DatabaseParts, route: DatabaseRoute) {
    super(socket, Number.POSITIVE_INFINITY)
    this.parts = parts
    this.route = route
    this.client = socket.remoteAddress ?? ''
  }

  /** The rules of private networks say the same, but only of what comes from machines. */
  private isAllowed(): boolean {
    const { table, settings } = this.parts
    const machine = findMachineOf(settings.homeNumber, this.client)
    const route = table.find(this.route.address)
    return route?.port === this.route.port && machine?.networkNumber === route.networkNumber
  }

  start(): void {
    const { clusterId, endpoint, port } = this.route
    if (!this.isAllowed()) {
      this.destroy()
      return
    }
    const place = { address: this.parts.settings.host, from: undefined, port, key: `${clusterId} ${endpoint}` }
    this.parts.pool.connect(place).then(
      (upstream) => {
        if (this.isOver) upstream.socket.destroy()
        else this.join(upstream)
      },
      () => this.destroy(),
    )
  }

  override sweep(now: number): void {
    if (this.isAllowed()) super.sweep(now)
    else this.destroy()
  }
}
