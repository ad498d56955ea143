// Parsers for the values of settings. Each takes the name of the setting for its error message.

import { isIP, isIPv4, isIPv6 } from 'node:net'
import { resolve } from 'node:path'
import { type AllowedTarget, parseAllowedTarget } from '../drivers/network/outbound-address.ts'
import { parseQuotas, type QuotaLimits } from '../model/account/quota.ts'
import { parsePools } from '../model/app/ip.ts'
import { parseDuration } from '../model/duration.ts'
import { type PostgresSource, postgresSources } from '../model/postgres/toolchain.ts'

export function readListen(name: string, value: string): { host: string; port: number } {
  const match = /^(?:\[([0-9a-fA-F:]+)\]|([^:\s]+)):(\d{1,5})$/.exec(value)
  const port = Number(match?.[3])
  if (!match || port > 65_535) throw new Error(`${name} must be host:port or [ipv6]:port, not "${value}"`)
  return { host: match[1] ?? match[2]!, port }
}

export function readDomain(name: string, value: string): string {
  if (/^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$/.test(value)) return value
  throw new Error(`${name} must be a domain in lowercase such as sandbox.localhost, not "${value}"`)
}

/** The URL is put into tokens unchanged, and verifiers compare it character by character. */
export function readIssuer(name: string, value: string): string | undefined {
  if (value === '') return undefined
  if (/^https?:\/\/[^\s/?#]+(\/[^\s?#]*[^\s?#/])?$/.test(value)) return value
  throw new Error(`${name} must be a URL such as https://berth.example.com, without a trailing slash, not "${value}"`)
}

/** The URL names the role that gets the rights of the edge. */
export function readDatabaseUrl(name: string, value: string): string | undefined {
  if (value === '') return undefined
  if (/^postgres(ql)?:\/\/[^@/\s]+@/.test(value) && URL.canParse(value) && new URL(value).username !== '') return value
  throw new Error(`${name} must be a URL such as postgresql://berth_edge:password@host/database`)
}

export function readSwitch(name: string, value: string): boolean {
  return readChoice(name, value, ['on', 'off']) === 'on'
}

export function readLogLevel(name: string, value: string): string {
  return readChoice(name, value, ['fatal', 'error', 'warn', 'info', 'debug', 'trace'])
}

export function readPostgresSource(name: string, value: string): PostgresSource {
  return readChoice(name, value, postgresSources)
}

function readChoice<T extends string>(name: string, value: string, choices: readonly T[]): T {
  const found = choices.find((choice) => choice === value)
  if (found !== undefined) return found
  throw new Error(`${name} must be one of ${choices.join(', ')}, not "${value}"`)
}

export function readList(_name: string, value: string): string[] | null {
  const items = value
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '')
  return items.length === 0 ? null : items
}

export function readPools(name: string, value: string): string[] | null {
  const pools = readList(name, value)
  try {
    parsePools(pools ?? [])
  } catch (error) {
    throw new Error(`${name} must be ranges such as 127.100.0.0/16,fd00::/64; ${(error as Error).message}`)
  }
  return pools
}

/** The targets that requests on behalf of tenants may have although their addresses are not public. */
export function readAllowedTargets(name: string, value: string): AllowedTarget[] {
  try {
    return (readList(name, value) ?? []).map(parseAllowedTarget)
  } catch (error) {
    throw new Error(`${name} must be a list such as registry.lan:5000,10.1.0.0/16; ${(error as Error).message}`)
  }
}

export function readNameServers(name: string, value: string): string[] {
  const servers = readList(name, value) ?? []
  const isServer = (text: string) =>
    isIP(text.replace(/^\[([^\]]*)\](?::\d{1,5})?$/, '$1')) !== 0 || isIPv4(text.replace(/:\d{1,5}$/, ''))
  const wrong = servers.find((server) => !isServer(server))
  if (wrong === undefined) return servers
  throw new Error(`${name} must be a list of addresses such as 9.9.9.9 or [2620:fe::fe]:53, not "${wrong}"`)
}

export function readQuotas(name: string, value: string): QuotaLimits {
  try {
    return parseQuotas(value)
  } catch (error) {
    throw new Error(`${name} must be a list such as clusters=5,disk_gb=unlimited; ${(error as Error).message}`)
  }
}

export function readNetworks(name: string, value: string): string[] {
  const networks = readList(name, value) ?? []
  for (const network of networks) {
    const [address = '', bits, ...rest] = network.split('/')
    const maxBits = isIPv4(address) ? 32 : isIPv6(address) && !address.includes('%') ? 128 : -1
    const isPrefix = bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= maxBits)
    if (maxBits < 0 || !isPrefix || rest.length > 0) {
      throw new Error(`${name} must be addresses and ranges such as 10.0.0.5,fd00::/64, not "${network}"`)
    }
  }
  return networks
}

export function readPortRange(name: string, value: string): { first: number; last: number } {
  const [first, last] = (/^(\d{1,5})-(\d{1,5})$/.exec(value) ?? []).slice(1).map(Number)
  if (first && last && first < last && last <= 65_535) return { first, last }
  throw new Error(`${name} must be two ports such as 15000-19999, not "${value}"`)
}

/** Makes a path absolute, because supervised processes start in another directory. */
export function readPath(_name: string, value: string): string | undefined {
  return value === '' ? undefined : resolve(value)
}

/** Returns seconds. */
export function readDuration(name: string, value: string): number {
  const seconds = (parseDuration(value, 'calendar') ?? 0) / 1000
  if (seconds >= 1) return seconds
  throw new Error(`${name} must be a duration such as 30m, 24h or 7d, not "${value}"`)
}

export function readDurationOrOff(name: string, value: string): number | null {
  return value === 'off' ? null : readDuration(name, value)
}

export function readNumber(min: number, max: number): (name: string, value: string) => number {
  return (name, value) => {
    const number = Number(value)
    if (Number.isInteger(number) && number >= min && number <= max) return number
    throw new Error(`${name} must be a whole number from ${min} to ${max}, not "${value}"`)
  }
}
