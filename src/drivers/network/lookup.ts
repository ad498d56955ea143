import { Resolver } from 'node:dns/promises'
import type { NameRecords } from '../../model/app/certificate.ts'
import { classifyAddress } from './outbound-address.ts'

/** Zones further up belong to a registry rather than to the owner of the host name. */
const maxZones = 5

/**
 * Looks up the DNS records of a host name; empty if the resolver does not answer. The name comes from a tenant, so
 * addresses that are neither public nor `known` to the tenant are left out: names of internal hosts must not be resolved
 * for tenants.
 */
export async function resolveHostName(hostname: string, known: string[], servers: string[] = []): Promise<NameRecords> {
  const resolver = new Resolver({ timeout: 2_000, tries: 1 })
  if (servers.length > 0) resolver.setServers(servers)
  const none = () => [] as string[]
  const name = hostname.replace(/^\*\./, 'any.')
  const domain = hostname.replace(/^\*\./, '')
  const [a, aaaa, cname, soa, challenge, ownership] = await Promise.all([
    resolver.resolve4(name).catch(none),
    resolver.resolve6(name).catch(none),
    resolver.resolveCname(name).catch(none),
    findPrimary(resolver, domain),
    resolver.resolveCname(`_acme-challenge.${domain}`).catch(none),
    resolver.resolveTxt(`_fly-ownership.${domain}`).catch(() => [] as string[][]),
  ])
  const [acmeChallengeCname, ownershipTxt] = [challenge[0] ?? null, ownership[0]?.join('') ?? null]
  return showable({ a, aaaa, cname, soa, acmeChallengeCname, ownershipTxt }, known)
}

/** Only the name of a zone has an SOA record, so each parent of the host name is asked; the nearest answer counts. */
async function findPrimary(resolver: Resolver, domain: string): Promise<string | null> {
  const labels = domain.split('.')
  const zones = labels.slice(0, -1).map((_, index) => labels.slice(index).join('.'))
  const found = await Promise.all(
    zones.slice(-maxZones).map((zone) =>
      resolver.resolveSoa(zone).then(
        ({ nsname }) => nsname,
        () => null,
      ),
    ),
  )
  return found.find((primary) => primary !== null) ?? null
}

/** Leaves out what a tenant must not see. The other names of an internal host are internal as well. */
export function showable(records: NameRecords, known: string[]): NameRecords {
  const { a, aaaa, cname } = records
  const isShown = (address: string) => known.includes(address) || classifyAddress(address) === 'public'
  const isInternal = ![...a, ...aaaa].every(isShown)
  const names = isInternal ? cname.filter((name) => known.includes(name)) : cname
  const shown = { ...records, a: a.filter(isShown), aaaa: aaaa.filter(isShown), cname: names }
  // Without any address it is unknown whether the zone is an internal one.
  const isPublic = !isInternal && a.length + aaaa.length > 0
  return isPublic ? shown : { ...shown, soa: null, acmeChallengeCname: null, ownershipTxt: null }
}
