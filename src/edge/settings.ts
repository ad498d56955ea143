import type pg from 'pg'

/** What the process of the edge is started with. */
export interface EdgeSettings {
  version: string
  host: string
  port: number
  workers: number
  sandboxDomain: string
  domain: string
  boxNetwork: number | null
  database: pg.ClientConfig
  tls: { certFile: string; keyFile: string } | null
  /** Who the workers become; null when this is no root. */
  uid: number | null
  maxConnections: number
  logLevel: string
}

/** How long requests may take to end when everything stops. */
export const stopMillis = 8_000
