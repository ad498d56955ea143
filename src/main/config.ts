// The whole configuration, read from the environment in this one place.
import { availableParallelism, homedir } from 'node:os'
import { resolve } from 'node:path'
import { parsePools } from '../model/app/ip.ts'
import { isLoopback } from '../model/network.ts'

export interface Listen {
  host: string
  port: number
}

export interface Config {
  home: string
  apiListen: Listen
  sandboxListen: Listen
  /** Where apps and sandboxes answer, each under a host name of its own. */
  edgeListen: Listen
  sandboxDomain: string
  edgeWorkers: number
  /** Apps answer below it. */
  domain: string
  /** Who vouches for machines to others; undefined: the platform API, where it listens. */
  issuer: string | undefined
  /** Idle machines that may be stopped are looked for this often. */
  autostopSeconds: number
  /** Undefined: the root token is the one generated at first start. */
  token: string | undefined
  /** Undefined: the platform runs its own state database. */
  databaseUrl: string | undefined
  tls: { certFile: string; keyFile: string } | undefined
  /** Listen beyond loopback without TLS. */
  insecure: boolean
  rateLimit: boolean
  regions: string[] | null
  /** Ranges of addresses for apps; null: those of the home. */
  ipPools: string[] | null
  /** Where clusters listen, the host name clients are told, and the ports to hand out. */
  pgListen: string
  pgHost: string
  pgPorts: { first: number; last: number }
  /** PostgreSQL installations of the operator, by major version. */
  pgBins: { 16?: string; 17?: string }
  /** Where backups and the log are kept. */
  repository: string
  pitrDays: number
  backupIntervalSeconds: number
  /** Null: no restore drills by themselves. */
  drillIntervalSeconds: number | null
  scrubIntervalSeconds: number
  deletedDays: number
  uidBase: number
  /** Where the CLI finds the platform; undefined: the one of the local home. */
  url: string | undefined
  /** The same for sandboxes; undefined: it follows from the other. */
  sandboxUrl: string | undefined
  logLevel: string
}

type Environment = Record<string, string | undefined>

interface Setting {
  name: string
  fallback: string
  about: string
  /** Never printed. */
  secret?: true
}

const defaultHome = process.getuid?.() === 0 ? '/var/lib/berth' : `${homedir()}/.berth`

export const settings: Setting[] = [
  { name: 'BERTH_HOME', fallback: defaultHome, about: 'all state lives below it' },
  { name: 'BERTH_API_LISTEN', fallback: '127.0.0.1:4280', about: 'platform API; port 0 picks a free one' },
  { name: 'BERTH_SANDBOX_LISTEN', fallback: '127.0.0.1:4281', about: 'sandbox API' },
  {
    name: 'BERTH_EDGE_LISTEN',
    fallback: '127.0.0.1:4282',
    about: 'apps and sandboxes, by their host names; port 0 picks a free one once',
  },
  { name: 'BERTH_SANDBOX_DOMAIN', fallback: 'sandbox.localhost', about: 'a sandbox answers at <name>.<this domain>' },
  {
    name: 'BERTH_ISSUER',
    fallback: '',
    about: 'URL at which others check identities of machines; that of the platform API when unset',
  },
  { name: 'BERTH_DOMAIN', fallback: 'berth.localhost', about: 'an app answers at <name>.<this domain>' },
  { name: 'BERTH_EDGE_WORKERS', fallback: String(availableParallelism()), about: 'processes that carry the traffic' },
  { name: 'BERTH_AUTOSTOP_INTERVAL', fallback: '3m', about: 'machines with autostop are stopped after this long idle' },
  { name: 'BERTH_TOKEN', fallback: '', about: 'root token; generated into <home>/token when unset', secret: true },
  { name: 'BERTH_DATABASE_URL', fallback: '', about: 'external state database; embedded when unset', secret: true },
  { name: 'BERTH_TLS_CERT', fallback: '', about: 'certificate file for the listeners' },
  { name: 'BERTH_TLS_KEY', fallback: '', about: 'key file for the listeners' },
  { name: 'BERTH_INSECURE', fallback: 'off', about: 'on: listen beyond loopback without TLS' },
  { name: 'BERTH_RATE_LIMIT', fallback: 'off', about: 'on: 1/s burst 3 per action and object, 5/s burst 10 for reads' },
  { name: 'BERTH_REGIONS', fallback: '', about: 'comma list of region codes; any well-formed one when unset' },
  {
    name: 'BERTH_IP_POOLS',
    fallback: '',
    about: 'comma list of address ranges for apps; 127.100.0.0/16 and a private IPv6 /64, counted by home, when unset',
  },
  { name: 'BERTH_PG_LISTEN', fallback: '127.0.0.1', about: 'addresses clusters listen on, separated by commas' },
  { name: 'BERTH_PG_HOST', fallback: 'localhost', about: 'host name of clusters in endpoints and certificates' },
  { name: 'BERTH_PG_PORTS', fallback: '15000-19999', about: 'ports for clusters' },
  { name: 'BERTH_PG16_BIN', fallback: '', about: 'bin directory of a PostgreSQL 16; looked up when unset' },
  { name: 'BERTH_PG17_BIN', fallback: '', about: 'bin directory of a PostgreSQL 17; looked up when unset' },
  { name: 'BERTH_REPOSITORY', fallback: '', about: 'backups and log of clusters; <home>/repository when unset' },
  { name: 'BERTH_PITR_DAYS', fallback: '7', about: 'the recovery window reaches this far back' },
  { name: 'BERTH_BACKUP_INTERVAL', fallback: '24h', about: 'a backup of each cluster at least this often' },
  { name: 'BERTH_DRILL_INTERVAL', fallback: '24h', about: 'a restore drill of each cluster this often, or off' },
  { name: 'BERTH_SCRUB_INTERVAL', fallback: '7d', about: 'the checksums of each backup are read again this often' },
  { name: 'BERTH_DELETED_DAYS', fallback: '7', about: 'backups of a deleted cluster are kept this long' },
  { name: 'BERTH_UID_BASE', fallback: '300000', about: 'first uid for workloads when root' },
  { name: 'BERTH_URL', fallback: '', about: 'platform the CLI talks to; the local home when unset' },
  {
    name: 'BERTH_SANDBOX_URL',
    fallback: '',
    about: 'sandbox API the CLI talks to; the host of BERTH_URL with port 4281 when unset',
  },
  { name: 'BERTH_LOG_LEVEL', fallback: 'info', about: 'fatal, error, warn, info, debug or trace' },
]

/** Paths become absolute: what runs under the supervisor starts in another directory. */
export function readConfig(environment: Environment = process.env): Config {
  const raw = (name: string) => {
    return environment[name]?.trim() || settings.find((setting) => setting.name === name)!.fallback
  }
  const config: Config = {
    home: resolve(raw('BERTH_HOME')),
    apiListen: readListen('BERTH_API_LISTEN', raw('BERTH_API_LISTEN')),
    sandboxListen: readListen('BERTH_SANDBOX_LISTEN', raw('BERTH_SANDBOX_LISTEN')),
    edgeListen: readListen('BERTH_EDGE_LISTEN', raw('BERTH_EDGE_LISTEN')),
    sandboxDomain: readDomain('BERTH_SANDBOX_DOMAIN', raw('BERTH_SANDBOX_DOMAIN')),
    domain: readDomain('BERTH_DOMAIN', raw('BERTH_DOMAIN')),
    issuer: readIssuer('BERTH_ISSUER', raw('BERTH_ISSUER')),
    edgeWorkers: readNumber('BERTH_EDGE_WORKERS', raw('BERTH_EDGE_WORKERS'), 1, 64),
    autostopSeconds: readDuration('BERTH_AUTOSTOP_INTERVAL', raw('BERTH_AUTOSTOP_INTERVAL')),
    token: raw('BERTH_TOKEN') || undefined,
    databaseUrl: raw('BERTH_DATABASE_URL') || undefined,
    tls: readTls(raw('BERTH_TLS_CERT'), raw('BERTH_TLS_KEY')),
    insecure: readSwitch('BERTH_INSECURE', raw('BERTH_INSECURE')),
    rateLimit: readSwitch('BERTH_RATE_LIMIT', raw('BERTH_RATE_LIMIT')),
    regions: readList(raw('BERTH_REGIONS')),
    ipPools: readPools('BERTH_IP_POOLS', raw('BERTH_IP_POOLS')),
    pgListen: raw('BERTH_PG_LISTEN'),
    pgHost: raw('BERTH_PG_HOST'),
    pgPorts: readRange('BERTH_PG_PORTS', raw('BERTH_PG_PORTS')),
    pgBins: readBins(raw('BERTH_PG16_BIN'), raw('BERTH_PG17_BIN')),
    repository: resolve(raw('BERTH_REPOSITORY') || `${raw('BERTH_HOME')}/repository`),
    pitrDays: readNumber('BERTH_PITR_DAYS', raw('BERTH_PITR_DAYS'), 1, 3650),
    backupIntervalSeconds: readDuration('BERTH_BACKUP_INTERVAL', raw('BERTH_BACKUP_INTERVAL')),
    drillIntervalSeconds:
      raw('BERTH_DRILL_INTERVAL') === 'off' ? null : readDuration('BERTH_DRILL_INTERVAL', raw('BERTH_DRILL_INTERVAL')),
    scrubIntervalSeconds: readDuration('BERTH_SCRUB_INTERVAL', raw('BERTH_SCRUB_INTERVAL')),
    deletedDays: readNumber('BERTH_DELETED_DAYS', raw('BERTH_DELETED_DAYS'), 0, 3650),
    uidBase: readNumber('BERTH_UID_BASE', raw('BERTH_UID_BASE'), 1000, 2_000_000_000),
    url: raw('BERTH_URL').replace(/\/+$/, '') || undefined,
    sandboxUrl: raw('BERTH_SANDBOX_URL') || undefined,
    logLevel: readChoice('BERTH_LOG_LEVEL', raw('BERTH_LOG_LEVEL'), [
      'fatal',
      'error',
      'warn',
      'info',
      'debug',
      'trace',
    ]),
  }
  return config
}

/** What a program that the user asked for gets handed on, as from a shell. */
export function inheritedEnvironment(): Environment {
  return process.env
}

/** Tokens would cross the network in the clear, so an open listener needs TLS or an explicit word. */
export function refuseOpenListeners(config: Config): void {
  if (config.tls || config.insecure) return
  for (const [name, { host, port }] of [
    ['BERTH_API_LISTEN', config.apiListen],
    ['BERTH_SANDBOX_LISTEN', config.sandboxListen],
    ['BERTH_EDGE_LISTEN', config.edgeListen],
  ] as const) {
    if (!isLoopback(host)) {
      throw new Error(
        `${name} is ${host}:${port}, beyond loopback and without TLS; set BERTH_TLS_CERT and BERTH_TLS_KEY, or BERTH_INSECURE=on if something in front of it speaks TLS`,
      )
    }
  }
}

/** Name, value in force, whether it was set, and what it is for. Secrets are never shown. */
export function describeConfig(environment: Environment = process.env) {
  return settings.map(({ name, fallback, about, secret }) => {
    const given = environment[name]?.trim() || ''
    const shown = secret && given ? '(set)' : given || fallback
    return { name, value: shown, set: given !== '', about }
  })
}

function readListen(name: string, value: string): Listen {
  const match = /^(?:\[([0-9a-fA-F:]+)\]|([^:\s]+)):(\d{1,5})$/.exec(value)
  const port = Number(match?.[3])
  if (!match || port > 65_535) throw new Error(`${name} must be host:port or [ipv6]:port, not "${value}"`)
  return { host: match[1] ?? match[2]!, port }
}

function readDomain(name: string, value: string): string {
  if (/^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$/.test(value)) return value
  throw new Error(`${name} must be a domain in lowercase such as sandbox.localhost, not "${value}"`)
}

/** As it stands in tokens, which others compare with what they were told. */
function readIssuer(name: string, value: string): string | undefined {
  if (value === '') return undefined
  if (/^https?:\/\/[^\s/?#]+(\/[^\s?#]*[^\s?#/])?$/.test(value)) return value
  throw new Error(`${name} must be a URL such as https://berth.example.com, without a slash at its end, not "${value}"`)
}

function readTls(certFile: string, keyFile: string): Config['tls'] {
  if (!certFile && !keyFile) return undefined
  if (!certFile || !keyFile) throw new Error('BERTH_TLS_CERT and BERTH_TLS_KEY must be set together')
  return { certFile: resolve(certFile), keyFile: resolve(keyFile) }
}

function readSwitch(name: string, value: string): boolean {
  return readChoice(name, value, ['on', 'off']) === 'on'
}

function readChoice(name: string, value: string, choices: string[]): string {
  if (choices.includes(value)) return value
  throw new Error(`${name} must be one of ${choices.join(', ')}, not "${value}"`)
}

function readList(value: string): string[] | null {
  const items = value
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '')
  return items.length === 0 ? null : items
}

function readPools(name: string, value: string): string[] | null {
  const pools = readList(value)
  try {
    parsePools(pools ?? [])
  } catch (error) {
    throw new Error(`${name} must be ranges such as 127.100.0.0/16,fd00::/64; ${(error as Error).message}`)
  }
  return pools
}

function readRange(name: string, value: string): { first: number; last: number } {
  const [first, last] = (/^(\d{1,5})-(\d{1,5})$/.exec(value) ?? []).slice(1).map(Number)
  if (first && last && first < last && last <= 65_535) return { first, last }
  throw new Error(`${name} must be two ports such as 15000-19999, not "${value}"`)
}

function readBins(bin16: string, bin17: string): Config['pgBins'] {
  return { ...(bin16 ? { 16: resolve(bin16) } : {}), ...(bin17 ? { 17: resolve(bin17) } : {}) }
}

function readDuration(name: string, value: string): number {
  const match = /^(\d{1,6})(s|m|h|d)$/.exec(value)
  const unit = { s: 1, m: 60, h: 3600, d: 86_400 }[match?.[2] ?? ''] ?? 0
  const seconds = Number(match?.[1]) * unit
  if (seconds > 0) return seconds
  throw new Error(`${name} must be a duration such as 30m, 24h or 7d, not "${value}"`)
}

function readNumber(name: string, value: string, least: number, most: number): number {
  const number = Number(value)
  if (Number.isInteger(number) && number >= least && number <= most) return number
  throw new Error(`${name} must be a whole number from ${least} to ${most}, not "${value}"`)
}
