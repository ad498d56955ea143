import type { PostgresMajor } from './postgres/cluster.ts'

/** The operator's configuration and the host's capabilities that request handlers need. */
export interface PlatformSettings {
  /** The regions the platform serves; null accepts any well-formed code. */
  regions: readonly string[] | null
  defaultRegion: string
  /** How many days back clusters can be restored, unless their owner chose another number. */
  pitrDays: number
  /** The extensions that the installations of a PostgreSQL version have. */
  installedExtensions: Readonly<Record<PostgresMajor, ReadonlySet<string>>>
  /** The host name under which clients reach clusters. */
  pgHost: string
  /** The OpenID Connect issuer of machine identities: the platform's public URL. */
  issuer(): string
  appUrl(name: string): string
  sandboxUrl(name: string): string
  /** Distinguishes the platforms on this host; addresses derive from it. */
  homeNumber: number
  /** The address ranges from which apps get addresses. */
  ipPools: readonly string[]
  /** Why the host cannot provide private networks; undefined if it can. */
  privateNetworkGap?: string | undefined
  /** What clusters lack on a host that cannot isolate them; undefined if it can. */
  clusterGap?: string | undefined
  /** The host's memory, which is the limit for any guest. */
  memoryMb: number
}
