// The network of boxes: a pair of interfaces for each, with addresses that follow from the number of the home and the
// slot of the box. One table of rules for each home says what boxes reach: the internet, and nothing near the host.
import { createHash } from 'node:crypto'
import { existsSync, readdirSync } from 'node:fs'
import { isIPv4 } from 'node:net'
import { boxAddress, boxHostAddress, homeAddresses } from '../../model/network.ts'
import { readTextIfPresent } from '../host/file.ts'
import { ensureFile } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { commandExists, isRoot, run } from '../host/process.ts'
import { removePrivateNetworks } from '../network/private.ts'

export interface BoxNetwork {
  link: string
  hostAddress: string
  address: string
  hostMac: string
  mac: string
}

export function boxNetwork(home: Pick<Home, 'number'>, slot: number): BoxNetwork {
  // From the address, so that a neighbour table that remembers an earlier box stays right.
  const mac = (last: number) => `02:be:${hex(home.number)}:${hex(slot >> 8)}:${hex(slot & 255)}:${hex(last)}`
  return {
    link: `${linkPrefix(home)}${slot}`,
    hostAddress: boxHostAddress(home.number, slot),
    address: boxAddress(home.number, slot),
    hostMac: mac(1),
    mac: mac(2),
  }
}

function hex(byte: number): string {
  return byte.toString(16).padStart(2, '0')
}

/** No home's prefix is the beginning of another's. */
function linkPrefix(home: Pick<Home, 'number'>): string {
  return `bx${home.number}-`
}

export function networkTable(home: Pick<Home, 'number'>): string {
  return `berth-${home.number}`
}

export const nearby = [
  ...['0.0.0.0/8', '10.0.0.0/8', '100.64.0.0/10', '127.0.0.0/8', '169.254.0.0/16', '172.16.0.0/12', '192.0.0.0/24'],
  ...['192.168.0.0/16', '198.18.0.0/15', '224.0.0.0/3'],
]

/**
 * Whole and at once, so that there is no moment without rules. What refines the rules of one box adds a chain and an
 * element of `policies`, which maps the box's interface to `jump <chain>`, and one of `resolvers`, to which every
 * question for a name is led; these outlive this.
 */
function renderTable(home: Home, resolvers: string[]): string {
  const table = `inet ${networkTable(home)}`
  const boxes = `"${linkPrefix(home)}*"`
  const dns =
    resolvers.length > 0 ? `ip daddr { ${resolvers.join(', ')} } meta l4proto { tcp, udp } th dport 53 accept` : ''
  return `
table ${table} {
  map policies { type ifname : verdict
  }
  map resolvers { type ifname : ipv4_addr
  }
  chain input { type filter hook input priority -10; policy accept; }
  chain forward { type filter hook forward priority -10; policy accept; }
  chain outgoing {
  }
  chain redirecting { type nat hook prerouting priority -100; }
  chain masquerading { type nat hook postrouting priority 100; }
}
flush chain ${table} input
flush chain ${table} forward
flush chain ${table} outgoing
flush chain ${table} redirecting
flush chain ${table} masquerading
table ${table} {
  chain input {
    iifname ${boxes} ct state established,related accept
    iifname ${boxes} ct status dnat accept
    iifname ${boxes} drop
  }
  chain redirecting {
    iifname ${boxes} meta l4proto { tcp, udp } th dport 53 dnat ip to iifname map @resolvers
  }
  chain forward {
    iifname ${boxes} jump outgoing
    oifname ${boxes} ct state established,related accept
    oifname ${boxes} drop
  }
  chain outgoing {
    oifname ${boxes} drop
    meta nfproto ipv6 drop
    iifname vmap @policies
    ${dns}
    ip daddr { ${nearby.join(', ')} } drop
    accept
  }
  chain masquerading {
    ip saddr ${homeAddresses(home.number)} oifname != ${boxes} masquerade
  }
}
`
}

export interface BoxRules {
  file: string
  table: string
  /** An empty chain that is there when the rules are, because changing rules takes far longer than looking. */
  chain: string
}

/** The rules as a file, which every box puts in force before it has a network: a reboot takes them away. */
export function ensureRules(home: Home): BoxRules {
  const file = `${home.path}/sandbox-base/rules.nft`
  const table = networkTable(home)
  const rules = renderTable(home, findResolvers())
  const chain = `version-${createHash('sha256').update(rules).digest('hex').slice(0, 16)}`
  const before = /^add chain \S+ \S+ (version-\w+)$/m.exec(readTextIfPresent(file) ?? '')?.[1]
  if (before === chain) return { file, table, chain }
  // Adding it first makes the deletion right whether it was there or not.
  const forget = before ? `add chain inet ${table} ${before}\ndelete chain inet ${table} ${before}\n` : ''
  ensureFile(file, `${rules}add chain inet ${table} ${chain}\n${forget}`, { mode: 0o600 })
  return { file, table, chain }
}

/** It goes with its other end when the box ends; this is for what a crash of the kernel's clean-up would leave. */
export async function removeLink(link: string): Promise<void> {
  if (!existsSync(`/sys/class/net/${link}`)) return
  await run('ip', ['link', 'delete', link]).catch((error) => {
    if (existsSync(`/sys/class/net/${link}`)) throw error
  })
}

/** The rules and the interfaces of a home's boxes, and its private networks. */
export async function removeNetwork(home: Home): Promise<void> {
  if (!isRoot() || !commandExists('nft') || !commandExists('ip')) return
  const links = readdirSync('/sys/class/net').filter((name) => name.startsWith(linkPrefix(home)))
  for (const link of links) await removeLink(link)
  await removePrivateNetworks(home)
  // Adding it first makes the deletion right whether it was there or not.
  const table = `inet ${networkTable(home)}`
  await run('nft', ['-f', '-'], { input: `add table ${table}\ndelete table ${table}\n` }).catch(() => undefined)
}

/** Those that the host itself asks, and that a box can reach: what listens on the host's loopback is out of reach. */
export function findResolvers(): string[] {
  const texts = ['/etc/resolv.conf', '/run/systemd/resolve/resolv.conf'].map((file) => readTextIfPresent(file) ?? '')
  const addresses = texts.map((text) =>
    [...text.matchAll(/^nameserver\s+(\d+(?:\.\d+){3})\s*$/gm)].map((match) => match[1]!),
  )
  const usable = addresses.map((list) => list.filter((address) => isIPv4(address) && !address.startsWith('127.')))
  return usable.find((list) => list.length > 0)?.slice(0, 3) ?? []
}
