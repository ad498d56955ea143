// Decides which addresses the platform may connect to on behalf of a tenant. Only globally routed addresses are allowed.
// Of IPv6 everything outside 2000::/3 is refused, which includes the forms that embed an IPv4 address: mapped,
// compatible, translated and NAT64.
import { BlockList, isIP } from 'node:net'
import { networkInterfaces } from 'node:os'

type Range = [address: string, bits: number]

/** Refused even if an operator allows a range around them. */
const forbiddenRanges = blockList(
  ['0.0.0.0', 8],
  ['169.254.0.0', 16], // link-local; most clouds serve credentials to their machines at 169.254.169.254
  ['100.100.100.200', 32], // metadata of Alibaba Cloud
  ['192.0.0.192', 32], // metadata of Oracle Cloud
  ['168.63.129.16', 32], // metadata of Azure
  ['224.0.0.0', 4],
  ['240.0.0.0', 4], // reserved, with the broadcast address
  ['::', 128],
  ['fe80::', 10],
  ['fec0::', 10], // site-local, deprecated
  ['ff00::', 8],
  ['fd00:ec2::254', 128], // metadata of AWS
  ['fd20:ce::254', 128], // metadata of Google Cloud
)

/** Refused unless an operator allows them. */
const internalRanges = blockList(
  ['10.0.0.0', 8],
  ['100.64.0.0', 10], // carrier-grade NAT, and the boxes of a platform
  ['127.0.0.0', 8],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24], // protocol assignments
  ['192.0.2.0', 24], // documentation
  ['192.88.99.0', 24], // 6to4 relays
  ['192.168.0.0', 16],
  ['198.18.0.0', 15], // benchmarks
  ['198.51.100.0', 24], // documentation
  ['203.0.113.0', 24], // documentation
  ['2001::', 23], // protocol assignments, with Teredo, benchmarks and ORCHID
  ['2001:db8::', 32], // documentation
  ['2002::', 16], // 6to4
  ['3fff::', 20], // documentation
)

const globalUnicast = blockList(['2000::', 3])
const mappedRange = blockList(['::ffff:0:0', 96])

function blockList(...ranges: Range[]): BlockList {
  const list = new BlockList()
  for (const [address, bits] of ranges) list.addSubnet(address, bits, familyOf(address))
  return list
}

function familyOf(address: string): 'ipv4' | 'ipv6' {
  return isIP(address) === 6 ? 'ipv6' : 'ipv4'
}

export type AddressKind = 'forbidden' | 'internal' | 'public'

/** Anything that is not the text of an address is forbidden, and so is an address with a zone. */
export function classifyAddress(address: string): AddressKind {
  if (isIP(address) === 0 || address.includes('%')) return 'forbidden'
  const family = familyOf(address)
  if (forbiddenRanges.check(address, family)) return 'forbidden'
  if (family === 'ipv6' && mappedRange.check(address, 'ipv6')) return 'internal'
  if (family === 'ipv6' && !globalUnicast.check(address, 'ipv6')) return 'internal'
  return internalRanges.check(address, family) || isOwnAddress(address) ? 'internal' : 'public'
}

/** This host reaches itself past the firewall in front of it, also at its public addresses. */
function isOwnAddress(address: string): boolean {
  const own = new BlockList()
  for (const entry of Object.values(networkInterfaces()).flat()) {
    if (entry) own.addAddress(entry.address.replace(/%.*/, ''), entry.family === 'IPv6' ? 'ipv6' : 'ipv4')
  }
  return own.check(address, familyOf(address))
}

/** What an operator allows although it is internal: a host name or address with or without a port, or a range. */
export interface AllowedTarget {
  host?: string
  port?: number
  range?: BlockList
}

/** Parses `host`, `host:port`, `[ipv6]:port`, an address, or a range such as 10.0.0.0/8. */
export function parseAllowedTarget(text: string): AllowedTarget {
  const [, network = '', bits = ''] = /^([0-9a-f.:]+)\/(\d{1,3})$/i.exec(text) ?? []
  const version = isIP(network)
  if (version !== 0 && Number(bits) <= (version === 4 ? 32 : 128)) return { range: blockList([network, Number(bits)]) }
  if (isIP(text) !== 0) return { range: blockList([text, isIP(text) === 4 ? 32 : 128]) }
  const [, bracketed, name, port] = /^(?:\[([0-9a-f.:]+)\]|([a-z0-9._-]+))(?::(\d{1,5}))?$/i.exec(text) ?? []
  const host = bracketed ?? name
  const isValid =
    host !== undefined && (bracketed === undefined || isIP(bracketed) === 6) && Number(port ?? 1) <= 65_535
  if (!isValid || Number(port ?? 1) < 1) throw new Error(`"${text}" is not a host, host:port, address or range`)
  const target =
    isIP(host) === 0 ? { host: canonicalName(host) } : { range: blockList([host, isIP(host) === 4 ? 32 : 128]) }
  return { ...target, ...(port !== undefined && { port: Number(port) }) }
}

function canonicalName(host: string): string {
  return host.toLowerCase().replace(/\.$/, '')
}

/** Whether the platform may connect to this address, to which the host name of a URL was resolved. */
export function isAllowedAddress(
  { host, port, address }: { host: string; port: number; address: string },
  allowed: AllowedTarget[],
): boolean {
  const kind = classifyAddress(address)
  if (kind !== 'internal') return kind === 'public'
  return allowed.some((target) => {
    if (target.port !== undefined && target.port !== port) return false
    if (target.range) return target.range.check(address, familyOf(address))
    return target.host === canonicalName(host)
  })
}
