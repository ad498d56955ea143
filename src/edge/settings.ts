import type pg from 'pg'
import type { NamesSettings } from './dns/server.ts'
import type { ApiSettings } from './tcp/api.ts'
import type { DatabaseSettings } from './tcp/database.ts'

/** Where boxes are: at addresses of their own that follow from the number of the home, at the host's, or nowhere. */
export type BoxPlaces = { homeNumber: number } | 'host' | 'none'

/** What the process of the edge is started with. */
export interface EdgeSettings {
  version: string
  host: string
  port: number
  workers: number
  sandboxDomain: string
  domain: string
  boxes: BoxPlaces
  database: pg.ClientConfig
  /** The operator's: nothing else is spoken at the port above then. */
  tls: { certFile: string; keyFile: string } | null
  /** Made by the platform's authority, for names that have no other. */
  ownTls: { certFile: string; keyFile: string } | null
  /** Opens the private keys of certificates, as base64. */
  certificateKey: string
  /** Where this edge is. */
  region: string
  /** Addresses that may be put in place for apps, as networks. */
  pools: string[]
  /** For machines of private networks; null where there are none. */
  names: NamesSettings | null
  /** Clusters that they can use; null likewise. */
  databases: DatabaseSettings | null
  /** The API, for machines; null likewise. */
  api: ApiSettings | null
  /** How often idle machines are looked for. */
  autostopSeconds: number
  /** Who the workers become; null when this is no root. */
  uid: number | null
  maxConnections: number
  /** Of datagrams, and ports for them there are no more than that. */
  maxFlows: number
  logLevel: string
}

/** How long requests may take to end when everything stops. */
export const stopMillis = 8_000
