// The configuration. This is the only file that reads the environment.

import { resolve } from 'node:path'
import type { AllowedTarget } from '../drivers/network/outbound-address.ts'
import type { QuotaLimits } from '../model/account/quota.ts'
import { isLoopback } from '../model/network.ts'
import type { PostgresMajor } from '../model/postgres/cluster.ts'
import type { PostgresSource } from '../model/postgres/toolchain.ts'
import { settings } from './setting.ts'
import {
  readAllowedTargets,
  readDatabaseUrl,
  readDomain,
  readDuration,
  readDurationOrOff,
  readIssuer,
  readList,
  readListen,
  readLogLevel,
  readNameServers,
  readNetworks,
  readNumber,
  readPath,
  readPools,
  readPortRange,
  readPostgresSource,
  readQuotas,
  readSwitch,
} from './setting-value.ts'

export interface Listen {
  host: string
  port: number
}

export interface Config {
  home: string
  apiListen: Listen
  sandboxListen: Listen
  /** The address of the edge, which serves apps and sandboxes by their host names. */
  edgeListen: Listen
  sandboxDomain: string
  edgeWorkers: number
  /** The parent domain of apps. */
  domain: string
  /** The issuer of the identity tokens of machines; undefined: the URL of the platform API. */
  issuer: string | undefined
  /** How often idle machines with autostop are looked for. */
  autostopSeconds: number
  /** Undefined: the root token is the one generated at first start. */
  token: string | undefined
  /** Undefined: the platform runs its own state database. */
  databaseUrl: string | undefined
  /** The login of the edge to an external state database; undefined: the same as that of the control plane. */
  edgeDatabaseUrl: string | undefined
  tls: { certFile: string; keyFile: string } | undefined
  /** Allows listening beyond loopback without TLS. */
  insecure: boolean
  rateLimit: boolean
  /** The quotas of organizations without their own. */
  quotas: QuotaLimits
  regions: string[] | null
  /** Networks of proxies in front of the edge that tell the truth about clients. */
  trustedProxies: string[]
  /** Address ranges for apps; null: the default ranges of the home. */
  ipPools: string[] | null
  /** Targets of requests on behalf of tenants that are allowed although their addresses are not public. */
  outboundAllow: AllowedTarget[]
  /** Name servers for names that tenants choose; empty: those of the host. */
  outboundDns: string[]
  /** The addresses clusters listen on, the host name given to clients, and the ports to assign. */
  pgListen: string
  pgHost: string
  pgPorts: { first: number; last: number }
  /** The operator's own PostgreSQL installations, by major version. */
  pgBins: { 16?: string; 17?: string }
  /** Which PostgreSQL new clusters get, and where the distribution has its own. */
  postgres: PostgresSource
  postgresDirectory: string
  /** The directory for backups and WAL. */
  repository: string
  pitrDays: number
  backupIntervalSeconds: number
  /** Null: restore drills are not scheduled. */
  drillIntervalSeconds: number | null
  scrubIntervalSeconds: number
  deletedDays: number
  uidBase: number
  /** The platform the CLI talks to; undefined: the one of the local home. */
  url: string | undefined
  /** The sandbox API the CLI talks to; undefined: derived from `url`. */
  sandboxUrl: string | undefined
  logLevel: string
}

type Environment = Record<string, string | undefined>

export function readConfig(environment: Environment = process.env): Config {
  const raw = (name: string) => {
    return environment[name]?.trim() || settings.find((setting) => setting.name === name)!.fallback
  }
  const read = <T>(name: string, parse: (name: string, value: string) => T): T => parse(name, raw(name))
  return {
    home: resolve(raw('BERTH_HOME')),
    apiListen: read('BERTH_API_LISTEN', readListen),
    sandboxListen: read('BERTH_SANDBOX_LISTEN', readListen),
    edgeListen: read('BERTH_EDGE_LISTEN', readListen),
    sandboxDomain: read('BERTH_SANDBOX_DOMAIN', readDomain),
    domain: read('BERTH_DOMAIN', readDomain),
    issuer: read('BERTH_ISSUER', readIssuer),
    edgeWorkers: read('BERTH_EDGE_WORKERS', readNumber(1, 64)),
    autostopSeconds: read('BERTH_AUTOSTOP_INTERVAL', readDuration),
    token: raw('BERTH_TOKEN') || undefined,
    databaseUrl: raw('BERTH_DATABASE_URL') || undefined,
    edgeDatabaseUrl: combineEdgeDatabase(raw('BERTH_DATABASE_URL'), read('BERTH_EDGE_DATABASE_URL', readDatabaseUrl)),
    tls: combineTls(read('BERTH_TLS_CERT', readPath), read('BERTH_TLS_KEY', readPath)),
    insecure: read('BERTH_INSECURE', readSwitch),
    rateLimit: read('BERTH_RATE_LIMIT', readSwitch),
    quotas: read('BERTH_QUOTAS', readQuotas),
    regions: read('BERTH_REGIONS', readList),
    trustedProxies: read('BERTH_TRUSTED_PROXIES', readNetworks),
    ipPools: read('BERTH_IP_POOLS', readPools),
    outboundAllow: read('BERTH_OUTBOUND_ALLOW', readAllowedTargets),
    outboundDns: read('BERTH_OUTBOUND_DNS', readNameServers),
    pgListen: raw('BERTH_PG_LISTEN'),
    pgHost: raw('BERTH_PG_HOST'),
    pgPorts: read('BERTH_PG_PORTS', readPortRange),
    pgBins: combineBins(read('BERTH_PG16_BIN', readPath), read('BERTH_PG17_BIN', readPath)),
    postgres: read('BERTH_POSTGRES', readPostgresSource),
    postgresDirectory: resolve(raw('BERTH_POSTGRES_DIRECTORY')),
    repository: resolve(raw('BERTH_REPOSITORY') || `${raw('BERTH_HOME')}/repository`),
    pitrDays: read('BERTH_PITR_DAYS', readNumber(1, 3650)),
    backupIntervalSeconds: read('BERTH_BACKUP_INTERVAL', readDuration),
    drillIntervalSeconds: read('BERTH_DRILL_INTERVAL', readDurationOrOff),
    scrubIntervalSeconds: read('BERTH_SCRUB_INTERVAL', readDuration),
    deletedDays: read('BERTH_DELETED_DAYS', readNumber(0, 3650)),
    uidBase: read('BERTH_UID_BASE', readNumber(1000, 2_000_000_000)),
    url: raw('BERTH_URL').replace(/\/+$/, '') || undefined,
    sandboxUrl: raw('BERTH_SANDBOX_URL') || undefined,
    logLevel: read('BERTH_LOG_LEVEL', readLogLevel),
  }
}

function combineEdgeDatabase(databaseUrl: string, edgeDatabaseUrl: string | undefined): string | undefined {
  if (edgeDatabaseUrl === undefined || databaseUrl !== '') return edgeDatabaseUrl
  throw new Error('BERTH_EDGE_DATABASE_URL needs BERTH_DATABASE_URL; the embedded database has a role for the edge')
}

function combineTls(certFile: string | undefined, keyFile: string | undefined): Config['tls'] {
  if (!certFile && !keyFile) return undefined
  if (!certFile || !keyFile) throw new Error('BERTH_TLS_CERT and BERTH_TLS_KEY must be set together')
  return { certFile, keyFile }
}

function combineBins(bin16: string | undefined, bin17: string | undefined): Config['pgBins'] {
  return { ...(bin16 ? { 16: bin16 } : {}), ...(bin17 ? { 17: bin17 } : {}) }
}

/** Where the PostgreSQL of a major version may be, and which one is preferred. */
export function installationsOf(
  major: PostgresMajor,
  config: Pick<Config, 'pgBins' | 'postgres' | 'postgresDirectory'>,
) {
  return { configuredBin: config.pgBins[major], distribution: config.postgresDirectory, prefer: config.postgres }
}

/** The environment of this process, for programs that it runs, such as psql. */
export function inheritedEnvironment(): Environment {
  return process.env
}

/** A listener beyond loopback needs TLS or BERTH_INSECURE=on, because tokens would be sent in clear text. */
export function refuseOpenListeners(config: Config): void {
  if (config.tls || config.insecure) return
  for (const [name, { host, port }] of [
    ['BERTH_API_LISTEN', config.apiListen],
    ['BERTH_SANDBOX_LISTEN', config.sandboxListen],
    ['BERTH_EDGE_LISTEN', config.edgeListen],
  ] as const) {
    if (!isLoopback(host)) {
      throw new Error(
        `${name} is ${host}:${port}, which is beyond loopback and without TLS; set BERTH_TLS_CERT and BERTH_TLS_KEY, or BERTH_INSECURE=on if a proxy in front of it terminates TLS`,
      )
    }
  }
}

/** Lists all settings with their effective value. Secrets are not shown. */
export function describeConfig(environment: Environment = process.env) {
  return settings.map(({ name, fallback, about, secret }) => {
    const given = environment[name]?.trim() || ''
    const shown = secret && given ? '(set)' : given || fallback
    return { name, value: shown, set: given !== '', about }
  })
}
