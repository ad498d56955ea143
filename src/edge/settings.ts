import type pg from 'pg'

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
  tls: { certFile: string; keyFile: string } | null
  /** Who the workers become; null when this is no root. */
  uid: number | null
  maxConnections: number
  logLevel: string
}

/** How long requests may take to end when everything stops. */
export const stopMillis = 8_000
