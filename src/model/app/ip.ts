import { isIPv4, isIPv6 } from 'node:net'
import { type Static, Type } from 'typebox'
import type { Org } from '../account/org.ts'
import type { Micros } from '../time.ts'

export const ipTypes = ['v4', 'v6', 'shared_v4', 'private_v6'] as const
export type IpType = (typeof ipTypes)[number]
const egressTypes = ['egress_v4', 'egress_v6', 'egress_pair'] as const

/** An address of an app. */
export interface Ip {
  ip: string
  type: IpType
  region: string
  /** Shared addresses belong to several apps, which the edge tells apart by host name. */
  shared: boolean
  serviceName: string | null
  /** The network from which a private address is reachable. */
  network: { name: string; org: Pick<Org, 'id' | 'numericId' | 'slug' | 'name'> } | null
  createdAt: Micros
}

export const CreateIp = Type.Object(
  {
    type: Type.Enum([...ipTypes, ...egressTypes], {
      description:
        '`v4` and `v6` are for this app alone, `shared_v4` for all that have it, `private_v6` is reached from a private network only. Egress addresses are refused.',
    }),
    region: Type.Optional(Type.String({ maxLength: 32, description: '`global` when omitted.' })),
    org_slug: Type.Optional(
      Type.String({
        description:
          "With `private_v6`: the organization of the network; the app's when omitted. Other addresses are of the app's organization.",
      }),
    ),
    network: Type.Optional(
      Type.String({
        description: "With `private_v6`: the network from which it is reachable; the app's when omitted.",
      }),
    ),
    service_name: Type.Optional(
      Type.String({
        pattern: '^[A-Za-z0-9_.-]{0,63}$',
        refusal: 'service_name must be at most 63 letters, digits, dashes, underscores and dots',
      }),
    ),
  },
  { examples: [{ type: 'shared_v4' }] },
)
export type CreateIp = Static<typeof CreateIp>

/** A range of addresses for apps. */
export interface IpPool {
  /** The range as configured. */
  text: string
  family: 4 | 6
  /** The first and last assignable address. */
  first: string
  last: string
}

/** A part of 127/8, which every host has, and a private IPv6 range. Both differ between homes on one host. */
export function defaultPools(homeNumber: number): string[] {
  return [`127.${100 + homeNumber}.0.0/16`, `fd62:6572:7468:${homeNumber.toString(16)}::/64`]
}

/** Throws an error about the first invalid range. */
export function parsePools(texts: readonly string[]): IpPool[] {
  const pools = texts.map(parsePool)
  for (const [i, pool] of pools.entries()) {
    const other = pools.slice(0, i).find((one) => overlap(one, pool))
    if (other) throw new Error(`${pool.text} and ${other.text} overlap`)
  }
  return pools
}

interface Range extends IpPool {
  from: bigint
  to: bigint
}

function parsePool(text: string): Range {
  const [address = '', prefix = '', ...rest] = text.split('/')
  const family = isIPv4(address) ? 4 : isIPv6(address) && !/[.%]/.test(address) ? 6 : undefined
  const [bits, least] = family === 4 ? [32, 8] : [128, 16]
  if (family === undefined || rest.length > 0 || !/^\d{1,3}$/.test(prefix)) {
    throw new Error(`${JSON.stringify(text)} is not an address range such as 127.100.0.0/16`)
  }
  if (Number(prefix) < least || Number(prefix) > bits) {
    throw new Error(`${text} must have a prefix from /${least} to /${bits}`)
  }
  const size = 1n << BigInt(bits - Number(prefix))
  const start = numberOf(family, address)
  if (start % size !== 0n) throw new Error(`${text} does not begin at its prefix`)
  // The first address is the network's and the last the broadcast address.
  const edge = size > 2n ? 1n : 0n
  const [from, to] = [start + edge, start + size - 1n - edge]
  return { text, family, from, to, first: written(family, from), last: written(family, to) }
}

function overlap(a: Range, b: Range): boolean {
  return a.family === b.family && a.from <= b.to && b.from <= a.to
}

function numberOf(family: 4 | 6, address: string): bigint {
  if (family === 4) return address.split('.').reduce((sum, part) => sum * 256n + BigInt(part), 0n)
  const [head = '', tail] = address.split('::')
  const groups = (text: string) => (text === '' ? [] : text.split(':'))
  const [before, after] = [groups(head), groups(tail ?? '')]
  const zeros = Array<string>(tail === undefined ? 0 : 8 - before.length - after.length).fill('0')
  return [...before, ...zeros, ...after].reduce((sum, group) => sum * 65_536n + BigInt(`0x${group}`), 0n)
}

function written(family: 4 | 6, value: bigint): string {
  const [count, bits] = family === 4 ? [4, 8] : [8, 16]
  const parts = Array.from({ length: count }, (_, i) => {
    const part = (value >> BigInt((count - 1 - i) * bits)) & BigInt(2 ** bits - 1)
    return part.toString(family === 4 ? 10 : 16)
  })
  return parts.join(family === 4 ? '.' : ':')
}
