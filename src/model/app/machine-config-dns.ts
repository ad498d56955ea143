import { isIP } from 'node:net'
import { badRequest } from '../errors.ts'
import type { DnsOption, MachineConfig } from './machine-config.ts'

type Dns = NonNullable<MachineConfig['dns']>

const label = '[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?'
const hostname = new RegExp(`^${label}$`)
const fqdn = new RegExp(`^(?=.{1,253}$)${label}(\\.${label})*\\.?$`)

/** The lists of words that are written to resolv.conf. */
const resolverLists = [
  { key: 'nameservers', isValid: (word: string) => isIP(word.replace(/%[\w.-]+$/, '')) !== 0, expected: 'an address' },
  { key: 'searches', isValid: (word: string) => /^[A-Za-z0-9._-]{1,253}$/.test(word), expected: 'a domain' },
] as const

/** The values are written to /etc/resolv.conf and /etc/hosts, so none may contain whitespace or line breaks. */
export function normalizeDns(field: string, dns: Dns): Dns {
  if (dns.hostname !== undefined && !hostname.test(dns.hostname))
    throw badRequest(`${field}.hostname must be 1 to 63 letters, digits and dashes`)
  if (dns.hostname_fqdn !== undefined && !fqdn.test(dns.hostname_fqdn))
    throw badRequest(`${field}.hostname_fqdn must be a host name`)
  for (const { key, isValid, expected } of resolverLists) {
    const index = (dns[key] ?? []).findIndex((word) => !isValid(word))
    if (index >= 0) throw badRequest(`${field}.${key}.${index} must be ${expected}`)
  }
  if (!dns.options) return dns
  return { ...dns, options: dns.options.map((sent, index) => normalizeOption(`${field}.options.${index}`, sent)) }
}

const option = /^([a-z0-9-]{1,64})(?::(\d{1,9}))?$/

function normalizeOption(field: string, sent: DnsOption): DnsOption {
  const [, name, value] = option.exec(formatDnsOption(sent)) ?? []
  if (name === undefined)
    throw badRequest(`${field} must be an option of resolv.conf such as {"name": "ndots", "value": "2"}`)
  return { name, ...(value !== undefined && { value }) }
}

/** The option in the notation of resolv.conf. */
export function formatDnsOption(option: DnsOption): string {
  if (typeof option === 'string') return option
  return option.value ? `${option.name}:${option.value}` : option.name
}
