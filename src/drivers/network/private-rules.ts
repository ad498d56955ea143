// The nftables rules of private networks.
import { createHash } from 'node:crypto'
import { mkdirSync } from 'node:fs'
import { apiPort, resolverAddress } from '../../model/network.ts'
import { ensureFile } from '../host/atomic-file.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'

export type Numbered = Pick<Home, 'number'>

export function bridgePrefix(home: Numbered): string {
  return `bn${home.number}-`
}

export function portPrefix(home: Numbered): string {
  return `bm${home.number}-`
}

export function privateTable(home: Numbered): string {
  return `berth-private-${home.number}`
}

export function privatePaths(home: Pick<Home, 'path'>) {
  const directory = `${home.path}/private-network`
  return { directory, rules: `${directory}/rules.nft`, lock: `${directory}/lock`, notes: `${directory}/notes` }
}

/** Limits the DNS packets of each machine, so a flood costs the host little. */
const maxQueryRate = '2000/second burst 2000 packets'

/**
 * Bounds what one machine can take of the host's connection tracking table. A machine has 65536 addresses to send from,
 * which have its slot in common.
 */
const maxConnections = 1024
const slotMask = '::ffff:0'

/**
 * Renders the nftables rules. The set `networks` maps bridges to their addresses, and `sources` maps machines to the
 * addresses they may send from; loading the rules again keeps both. Packets between machines on one bridge pass
 * `forward` too if bridge-nf-call-ip6tables is set. `socket wildcard 0` keeps machines away from servers that listen on
 * all addresses.
 */
export function renderRules(home: Numbered): string {
  return `
${renderTables(privateTable(home))}${renderChains(home)}`
}

/** Declares tables, sets and base chains, which exist already on a reload, and empties the chains. */
function renderTables(name: string): string {
  return `table inet ${name} {
  set networks { type ifname . ipv6_addr; flags interval; }
  set opened { type ipv6_addr; size 2048; flags dynamic; }
  chain opening { type filter hook prerouting priority -50; policy accept; }
  chain input { type filter hook input priority -10; policy accept; }
  chain forward { type filter hook forward priority -10; policy accept; }
  chain arriving {
  }
  chain passing {
  }
}
table bridge ${name} {
  set sources { type ifname . ipv6_addr; flags interval; }
  set asks { type ifname; size 2048; flags dynamic; timeout 10s; }
  chain sending { type filter hook prerouting priority -300; policy accept; }
}
flush chain inet ${name} opening
flush chain inet ${name} input
flush chain inet ${name} forward
flush chain inet ${name} arriving
flush chain inet ${name} passing
flush chain bridge ${name} sending
`
}

function renderChains(home: Numbered): string {
  const name = privateTable(home)
  const bridges = `"${bridgePrefix(home)}*"`
  const ports = `"${portPrefix(home)}*"`
  const resolver = resolverAddress(home.number)
  const queries = `ip6 daddr ${resolver} meta l4proto { tcp, udp } th dport 53`
  const neighbours = 'icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept'
  return `table inet ${name} {
  chain opening {
    iifname ${bridges} iifname . ip6 saddr @networks ct state new add @opened { ip6 saddr & ${slotMask} ct count over ${maxConnections} } drop
  }
  chain input {
    iifname ${bridges} jump arriving
    iifname ${ports} drop
  }
  chain forward {
    iifname ${bridges} jump passing
    oifname ${bridges} drop
  }
  chain arriving {
    meta nfproto != ipv6 drop
    iifname . ip6 saddr != @networks drop
    ${neighbours}
    ct state established,related accept
    ${queries} socket wildcard 0 accept
    ip6 daddr ${resolver} tcp dport ${apiPort} socket wildcard 0 accept
    iifname . ip6 daddr @networks ip6 daddr & 0:0:0:ffff:ffff:: == :: socket wildcard 0 accept
    drop
  }
  chain passing {
    meta nfproto != ipv6 drop
    iifname . ip6 saddr != @networks drop
    oifname . ip6 saddr != @networks drop
    ${neighbours}
    oifname . ip6 daddr @networks accept
    drop
  }
}
table bridge ${name} {
  chain sending {
    iifname ${ports} ${queries} update @asks { iifname limit rate over ${maxQueryRate} } drop
    iifname ${ports} iifname . ip6 saddr @sources accept
    iifname ${ports} drop
  }
}
`
}

interface PrivateRules {
  file: string
  table: string
  /** An empty chain whose presence shows that this version of the rules is loaded. */
  chain: string
}

/** Writes the rules to a file. Each machine loads them before it gets a network, because a reboot removes them. */
export function ensurePrivateRules(home: Home): PrivateRules {
  const paths = privatePaths(home)
  const table = privateTable(home)
  const rules = renderRules(home)
  const chain = `version-${createHash('sha256').update(rules).digest('hex').slice(0, 16)}`
  const before = /^add chain \S+ \S+ (version-\w+)$/m.exec(readTextIfPresent(paths.rules) ?? '')?.[1]
  if (before === chain) return { file: paths.rules, table, chain }
  mkdirSync(paths.notes, { recursive: true, mode: 0o700 })
  // Deleting a missing chain is an error, so it is added first.
  const removal = before ? `add chain inet ${table} ${before}\ndelete chain inet ${table} ${before}\n` : ''
  ensureFile(paths.rules, `${rules}add chain inet ${table} ${chain}\n${removal}`, { mode: 0o600 })
  return { file: paths.rules, table, chain }
}
