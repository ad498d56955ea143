// The whole configuration, read from the environment in this one place.
import { homedir } from 'node:os'
import { isAbsolute, resolve } from 'node:path'

export interface Listen {
  host: string
  port: number
}

export interface Config {
  home: string
  apiListen: Listen
  sandboxListen: Listen
  /** Undefined: the root token is the one generated at first start. */
  token: string | undefined
  /** Undefined: the platform runs its own state database. */
  databaseUrl: string | undefined
  tls: { certFile: string; keyFile: string } | undefined
  /** Listen beyond loopback without TLS. */
  insecure: boolean
  rateLimit: boolean
  uidBase: number
  /** Where the CLI finds the platform; undefined: the one of the local home. */
  url: string | undefined
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
  { name: 'BERTH_TOKEN', fallback: '', about: 'root token; generated into <home>/token when unset', secret: true },
  { name: 'BERTH_DATABASE_URL', fallback: '', about: 'external state database; embedded when unset', secret: true },
  { name: 'BERTH_TLS_CERT', fallback: '', about: 'certificate file for the listeners' },
  { name: 'BERTH_TLS_KEY', fallback: '', about: 'key file for the listeners' },
  { name: 'BERTH_INSECURE', fallback: 'off', about: 'on: listen beyond loopback without TLS' },
  { name: 'BERTH_RATE_LIMIT', fallback: 'off', about: 'on: 1/s burst 3 per action and object, 5/s burst 10 for reads' },
  { name: 'BERTH_UID_BASE', fallback: '300000', about: 'first uid for workloads when root' },
  { name: 'BERTH_URL', fallback: '', about: 'platform the CLI talks to; the local home when unset' },
  { name: 'BERTH_LOG_LEVEL', fallback: 'info', about: 'fatal, error, warn, info, debug or trace' },
]

export function readConfig(environment: Environment = process.env): Config {
  const raw = (name: string) => {
    return environment[name]?.trim() || settings.find((setting) => setting.name === name)!.fallback
  }
  const config: Config = {
    home: readHome(raw('BERTH_HOME')),
    apiListen: readListen('BERTH_API_LISTEN', raw('BERTH_API_LISTEN')),
    sandboxListen: readListen('BERTH_SANDBOX_LISTEN', raw('BERTH_SANDBOX_LISTEN')),
    token: raw('BERTH_TOKEN') || undefined,
    databaseUrl: raw('BERTH_DATABASE_URL') || undefined,
    tls: readTls(raw('BERTH_TLS_CERT'), raw('BERTH_TLS_KEY')),
    insecure: readSwitch('BERTH_INSECURE', raw('BERTH_INSECURE')),
    rateLimit: readSwitch('BERTH_RATE_LIMIT', raw('BERTH_RATE_LIMIT')),
    uidBase: readNumber('BERTH_UID_BASE', raw('BERTH_UID_BASE'), 1000, 2_000_000_000),
    url: raw('BERTH_URL').replace(/\/+$/, '') || undefined,
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

/** Tokens would cross the network in the clear, so an open listener needs TLS or an explicit word. */
export function refuseOpenListeners(config: Config): void {
  if (config.tls || config.insecure) return
  for (const [name, { host, port }] of [
    ['BERTH_API_LISTEN', config.apiListen],
    ['BERTH_SANDBOX_LISTEN', config.sandboxListen],
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

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host)
}

function readHome(value: string): string {
  return isAbsolute(value) ? value : resolve(value)
}

function readListen(name: string, value: string): Listen {
  const match = /^(?:\[([0-9a-fA-F:]+)\]|([^:\s]+)):(\d{1,5})$/.exec(value)
  const port = Number(match?.[3])
  if (!match || port > 65_535) throw new Error(`${name} must be host:port or [ipv6]:port, not "${value}"`)
  return { host: match[1] ?? match[2]!, port }
}

function readTls(certFile: string, keyFile: string): Config['tls'] {
  if (!certFile && !keyFile) return undefined
  if (!certFile || !keyFile) throw new Error('BERTH_TLS_CERT and BERTH_TLS_KEY must be set together')
  return { certFile, keyFile }
}

function readSwitch(name: string, value: string): boolean {
  return readChoice(name, value, ['on', 'off']) === 'on'
}

function readChoice(name: string, value: string, choices: string[]): string {
  if (choices.includes(value)) return value
  throw new Error(`${name} must be one of ${choices.join(', ')}, not "${value}"`)
}

function readNumber(name: string, value: string, least: number, most: number): number {
  const number = Number(value)
  if (Number.isInteger(number) && number >= least && number <= most) return number
  throw new Error(`${name} must be a whole number from ${least} to ${most}, not "${value}"`)
}
