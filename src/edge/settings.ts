import type pg from 'pg'
import type { NameServerSettings } from './dns/server.ts'
import type { ApiSettings } from './tcp/api.ts'
import type { DatabaseSettings } from './tcp/database.ts'
import type { BoxNetwork } from './types.ts'

/** The contents of the file that the edge process reads its settings from. */
export interface EdgeSettings {
  version: string
  host: string
  port: number
  workers: number
  sandboxDomain: string
  domain: string
  boxes: BoxNetwork
  database: pg.ClientConfig
  /** The operator's certificate. With it, the edge's port accepts TLS only. */
  tls: { certFile: string; keyFile: string } | null
  /** A certificate from the platform's own authority, for host names that have no other. */
  ownTls: { certFile: string; keyFile: string } | null
  /** Decrypts the private keys of certificates; base64. */
  certificateKey: string
  region: string
  /** Networks of proxies whose X-Forwarded-* fields are believed. */
  trustedProxies?: string[]
  /** Networks whose addresses the edge may add to the loopback interface for apps. */
  pools: string[]
  /** The name server for machines; null when the host has no private networks. */
  names: NameServerSettings | null
  /** The relay from machines to clusters; null when the host has no private networks. */
  databases: DatabaseSettings | null
  /** The relay from machines to the API; null when the host has no private networks. */
  api: ApiSettings | null
  /** The socket of the service that keeps the listening sockets while the edge restarts; null when there is none. */
  socketHolder: string | null
  /** The interval between searches for idle machines. */
  autostopSeconds: number
  /** The user that workers switch to; null when the edge does not run as root. */
  uid: number | null
  /** Limits of each worker. */
  maxConnections: number
  /** Limits both the UDP flows of a worker and the UDP ports it opens. */
  maxFlows: number
  logLevel: string
}

/** Requests may take this long to finish when the edge stops. */
export const stopTimeoutMs = 8_000
