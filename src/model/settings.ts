import type { PostgresMajor } from './postgres/cluster.ts'

/** What the operator configured and what this installation can do, as far as a request needs to know. */
export interface PlatformSettings {
  /** The region codes this machine answers for; null accepts any well-formed one. */
  regions: readonly string[] | null
  defaultRegion: string
  /** The versions of PostgreSQL whose installation brings PostGIS. */
  postgisMajors: readonly PostgresMajor[]
  /** The host name under which clients reach clusters. */
  pgHost: string
  /** Who vouches for machines: where others find the platform. */
  issuer(): string
  /** Where an app answers. */
  appUrl(name: string): string
  /** Where the service of a sandbox answers. */
  sandboxUrl(name: string): string
  /** Tells this platform from the others on the machine; addresses follow from it. */
  homeNumber: number
  /** Ranges of addresses to give to apps. */
  ipPools: readonly string[]
  /** Why machines have no private networks; undefined where they have. */
  privateNetworkGap?: string | undefined
  /** What the machine has; no guest gets more. */
  memoryMb: number
}
