// Resolves names for outbound requests. It does not use getaddrinfo, because that blocks a thread of Node's small pool
// for as long as a name server that a tenant chose does not answer, and appends the host's search domains.
import { Resolver } from 'node:dns/promises'
import { readFile } from 'node:fs/promises'
import { isIP } from 'node:net'

const hostsFile = '/etc/hosts'
const timeoutMs = 2_000
const tries = 2

export type Lookup = (host: string) => Promise<string[]>

/** Returns all addresses of a name. Uses the host's name servers unless others are given. */
export function outboundLookup(servers: string[] = []): Lookup {
  return async (host) => {
    const name = host.toLowerCase().replace(/\.$/, '')
    if (name === 'localhost' || name.endsWith('.localhost')) return ['127.0.0.1', '::1']
    const local = findInHosts(await readFile(hostsFile, 'utf8').catch(() => ''), name)
    return local.length > 0 ? local : resolveName(name, servers)
  }
}

/** Reads the addresses of a name from the text of /etc/hosts. */
export function findInHosts(text: string, name: string): string[] {
  const lines = text.split('\n').map((line) => line.replace(/#.*/, '').trim().toLowerCase().split(/\s+/))
  return lines
    .filter(([address = '', ...names]) => isIP(address) !== 0 && names.includes(name))
    .map(([address]) => address!)
}

async function resolveName(name: string, servers: string[]): Promise<string[]> {
  const resolver = new Resolver({ timeout: timeoutMs, tries })
  if (servers.length > 0) resolver.setServers(servers)
  const answers = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)])
  const addresses = answers.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value : []))
  if (addresses.length > 0) return addresses
  throw (answers[0] as PromiseRejectedResult).reason
}
