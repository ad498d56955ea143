import { boxAddress, boxHostAddress } from '../model/network.ts'

/** The network that boxes have: addresses of their own (derived from the home's number), the host's network, or none. */
export type BoxNetwork = { homeNumber: number } | 'host' | 'none'

/** An address that the edge connects to. */
export interface Endpoint {
  /** Null when the target has no network. An absolute path is a Unix socket, for which `port` is ignored. */
  address: string | null
  /**
   * The local address to connect from. It exists only while the box runs. Without it, a connection to the address of a
   * stopped box would leave the host by the default route and reach whatever answers there.
   */
  localAddress: string | undefined
  port: number
  /** Identifies the running target: pooled connections are reused only for the same key. */
  key: string
}

/** The client of a connection. */
export interface Peer {
  address: string
  secure: boolean
  /** The local port that the client connected to. */
  port: number
  remotePort?: number
  /** The client is a proxy of the operator, so its X-Forwarded-* fields are believed. */
  trusted: boolean
  /** All proxies of the operator. */
  proxies?: { has(address: string): boolean }
}

/** One of the worker processes of the edge; limits are divided between them. */
export interface WorkerShare {
  index: number
  count: number
}

/** A limit on memory that many requests share. */
export interface ByteBudget {
  usedBytes: number
  maxBytes: number
}

export function boxEndpoint(network: BoxNetwork, slot: number): Pick<Endpoint, 'address' | 'localAddress'> {
  if (network === 'none') return { address: null, localAddress: undefined }
  if (network === 'host') return { address: '127.0.0.1', localAddress: undefined }
  return { address: boxAddress(network.homeNumber, slot), localAddress: boxHostAddress(network.homeNumber, slot) }
}
