// The network of boxes. Each has a veth pair, with addresses that follow from the number of the home and the slot of the
// box. One nftables table per home lets boxes reach the internet, but neither each other nor the networks of the host.
import { createHash } from 'node:crypto'
import { existsSync, readdirSync } from 'node:fs'
import { isIPv4 } from 'node:net'
import { boxAddress, boxHostAddress, homeAddresses } from '../../model/network.ts'
import { ensureFile } from '../host/atomic-file.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'
import { commandExists, isRoot, run } from '../host/process.ts'
import { removePrivateNetworks } from '../network/private.ts'
import { removeUnreachableRoutes } from '../network/unreachable.ts'

export interface BoxNetwork {
  link: string
  hostAddress: string
  address: string
  hostMac: string
  mac: string
}

export function boxNetwork(home: Pick<Home, 'number'>, slot: number): BoxNetwork {
  // The MAC follows from the address, so a neighbour entry of an earlier box in this slot stays valid.
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

/** The dash keeps the prefix of one home from matching the interfaces of another. */
function linkPrefix(home: Pick<Home, 'number'>): string {
  return `bx${home.number}-`
}

export function networkTable(home: Pick<Home, 'number'>): string {
  return `berth-${home.number}`
}

/** Address ranges that are private or local; boxes must not reach them. */
export const nearby = [
  ...['0.0.0.0/8', '10.0.0.0/8', '100.64.0.0/10', '127.0.0.0/8', '169.254.0.0/16', '172.16.0.0/12', '192.0.0.0/24'],
  ...['192.168.0.0/16', '198.18.0.0/15', '224.0.0.0/3'],
]

/** Bounds the part that one box can take of the connection tracking table, which all boxes and the host share. */
const maxConnections = 4096

/**
 * Loading the result replaces all rules in one transaction, so there is no moment without rules. The policy of a box adds
 * a chain, an element of `policies` that maps its interface to `jump <chain>`, and an element of `resolvers`, to which its
 * DNS queries are redirected. Those are kept.
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
  set opened { type ifname; size 2048; flags dynamic; }
  chain opening { type filter hook prerouting priority -50; policy accept; }
  chain input { type filter hook input priority -10; policy accept; }
  chain forward { type filter hook forward priority -10; policy accept; }
  chain outgoing {
  }
  chain redirecting { type nat hook prerouting priority -100; }
  chain masquerading { type nat hook postrouting priority 100; }
}
flush chain ${table} opening
flush chain ${table} input
flush chain ${table} forward
flush chain ${table} outgoing
flush chain ${table} redirecting
flush chain ${table} masquerading
table ${table} {
  chain opening {
    iifname ${boxes} ct state new add @opened { iifname ct count over ${maxConnections} } drop
  }
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
  /** An empty chain that marks the rules as loaded: testing for it is much faster than loading them again. */
  chain: string
}

/** Writes the rules to a file. Every box loads it before it gets a network, because a reboot removes them. */
export function ensureRules(home: Home): BoxRules {
  const file = `${home.path}/sandbox-base/rules.nft`
  const table = networkTable(home)
  const rules = renderTable(home, findResolvers())
  const chain = `version-${createHash('sha256').update(rules).digest('hex').slice(0, 16)}`
  const before = /^add chain \S+ \S+ (version-\w+)$/m.exec(readTextIfPresent(file) ?? '')?.[1]
  if (before === chain) return { file, table, chain }
  // Deleting a chain that does not exist fails, so it is added first.
  const deletion = before ? `add chain inet ${table} ${before}\ndelete chain inet ${table} ${before}\n` : ''
  ensureFile(file, `${rules}add chain inet ${table} ${chain}\n${deletion}`, { mode: 0o600 })
  return { file, table, chain }
}

/** The kernel removes the pair with the network namespace of the box; this removes one that was left behind. */
export async function removeLink(link: string): Promise<void> {
  if (!existsSync(`/sys/class/net/${link}`)) return
  await run('ip', ['link', 'delete', link]).catch((error) => {
    if (existsSync(`/sys/class/net/${link}`)) throw error
  })
}

/** Removes what the network of a box has left on the host. */
export async function removeBoxNetwork(home: Home, slot: number): Promise<void> {
  if (!isRoot()) return
  const { link } = boxNetwork(home, slot)
  await removeLink(link)
  if (!commandExists('nft')) return
  // There is no element if the box has opened no connection.
  const element = `inet ${networkTable(home)} opened { "${link}" }`
  await run('nft', ['delete', 'element', ...element.split(' ')]).catch(() => undefined)
}

/** Removes the nftables table, the interfaces of boxes, the private networks and the routes of a home. */
export async function removeNetwork(home: Home): Promise<void> {
  if (!isRoot() || !commandExists('nft') || !commandExists('ip')) return
  const links = readdirSync('/sys/class/net').filter((name) => name.startsWith(linkPrefix(home)))
  for (const link of links) await removeLink(link)
  await removePrivateNetworks(home)
  await removeUnreachableRoutes(home)
  // Deleting a table that does not exist fails, so it is added first.
  const table = `inet ${networkTable(home)}`
  await run('nft', ['-f', '-'], { input: `add table ${table}\ndelete table ${table}\n` }).catch(() => undefined)
}

/** The name servers of the host that boxes can reach, which excludes those on its loopback interface. */
export function findResolvers(): string[] {
  const texts = ['/etc/resolv.conf', '/run/systemd/resolve/resolv.conf'].map((file) => readTextIfPresent(file) ?? '')
  const addresses = texts.map((text) =>
    [...text.matchAll(/^nameserver\s+(\d+(?:\.\d+){3})\s*$/gm)].map((match) => match[1]!),
  )
  const usable = addresses.map((list) => list.filter((address) => isIPv4(address) && !address.startsWith('127.')))
  return usable.find((list) => list.length > 0)?.slice(0, 3) ?? []
}
