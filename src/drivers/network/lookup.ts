import { Resolver } from 'node:dns/promises'

/** Looks up the DNS records of a host name; empty lists if the resolver does not answer. */
export async function resolveHostName(hostname: string): Promise<{ a: string[]; aaaa: string[]; cname: string[] }> {
  const resolver = new Resolver({ timeout: 2_000, tries: 1 })
  const none = () => [] as string[]
  const name = hostname.replace(/^\*\./, 'any.')
  const [a, aaaa, cname] = await Promise.all([
    resolver.resolve4(name).catch(none),
    resolver.resolve6(name).catch(none),
    resolver.resolveCname(name).catch(none),
  ])
  return { a, aaaa, cname }
}
