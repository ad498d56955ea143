import { SocketAddress } from 'node:net'
import { databaseAddress } from '../../model/network.ts'
import { type ClusterEndpoint, clusterEndpoints, privateNames, privatePort } from '../../model/postgres/cluster.ts'
import type { ClusterRoute } from '../../store/postgres/route.ts'

/** An address of a cluster in a private network of its organization. */
export interface DatabaseRoute {
  clusterId: string
  endpoint: ClusterEndpoint
  networkNumber: number
  name: string
  /** In the notation of `socket.localAddress`. */
  address: string
  /** The cluster's port on this host. */
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

  /** The sockets to listen on, as `address port`. */
  listListens(): string[] {
    return [...this.byAddress.keys()].map((address) => `${address} ${privatePort}`)
  }
}

export function createDatabaseRoutes(cluster: ClusterRoute, homeNumber: number): DatabaseRoute[] {
  const names = privateNames(cluster.id)
  const ports = { pooler: cluster.poolerPort, direct: cluster.directPort }
  return cluster.networks.flatMap((networkNumber) =>
    clusterEndpoints.map((endpoint) => ({
      clusterId: cluster.id,
      endpoint,
      networkNumber,
      name: names[endpoint],
      address: canonicalAddress(databaseAddress(homeNumber, networkNumber, cluster.number, endpoint)),
      port: ports[endpoint],
    })),
  )
}

function canonicalAddress(address: string): string {
  return new SocketAddress({ address, family: 'ipv6' }).address
}
