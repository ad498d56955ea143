import { Resolver } from 'node:dns/promises'
import { classifyAddress } from './outbound-address.ts'

export interface NameRecords {
  a: string[]
  aaaa: string[]
  cname: string[]
}

/**
 * Looks up the DNS records of a host name; empty lists if the resolver does not answer. The name comes from a tenant, so
 * addresses that are neither public nor `known` to the tenant are left out: names of internal hosts must not be resolved
 * for tenants.
 */
export async function resolveHostName(hostname: string, known: string[], servers: string[] = []): Promise<NameRecords> {
  const resolver = new Resolver({ timeout: 2_000, tries: 1 })
  if (servers.length > 0) resolver.setServers(servers)
  const none = () => [] as string[]
  const name = hostname.replace(/^\*\./, 'any.')
  const [a, aaaa, cname] = await Promise.all([
    resolver.resolve4(name).catch(none),
    resolver.resolve6(name).catch(none),
    resolver.resolveCname(name).catch(none),
  ])
  return showable({ a, aaaa, cname }, known)
}

/** Leaves out what a tenant must not see. The canonical name of an internal host is internal as well. */
export function showable({ a, aaaa, cname }: NameRecords, known: string[]): NameRecords {
  const isShown = (address: string) => known.includes(address) || classifyAddress(address) === 'public'
  const isInternal = ![...a, ...aaaa].every(isShown)
  const names = isInternal ? cname.filter((name) => known.includes(name)) : cname
  return { a: a.filter(isShown), aaaa: aaaa.filter(isShown), cname: names }
}
