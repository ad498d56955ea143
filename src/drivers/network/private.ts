// Private networks of machines. Each is a bridge on the host, and each machine has a second pair of interfaces that ends
// there. Machines of one bridge reach each other, the resolver, the API and what listens on an address of the platform in
// their network; nothing leads from one bridge to another, to a box or out.
import { createHash } from 'node:crypto'
import { mkdirSync, readdirSync } from 'node:fs'
import {
  apiPort,
  gatewayAddress,
  machineAddress,
  networkPrefix,
  resolverAddress,
  writtenOut,
} from '../../model/network.ts'
import { readTextIfPresent } from '../host/file.ts'
import { ensureFile } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { commandExists, findCommand, isRoot, run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'

type Numbered = Pick<Home, 'number'>

function bridgePrefix(home: Numbered): string {
  return `bn${home.number}-`
}

function portPrefix(home: Numbered): string {
  return `bm${home.number}-`
}

export function privateTable(home: Numbered): string {
  return `berth-private-${home.number}`
}

function privatePaths(home: Pick<Home, 'path'>) {
  const directory = `${home.path}/private-network`
  return { directory, rules: `${directory}/rules.nft`, lock: `${directory}/lock`, notes: `${directory}/notes` }
}

/** What `private-network.pl` is told of a machine: keys and values of its configuration. */
export function privateConfig(home: Home, networkNumber: number, slot: number): Record<string, string> {
  const rules = ensurePrivateRules(home)
  const paths = privatePaths(home)
  // From the address, so that neighbours that remember an earlier machine stay right.
  const mac = (last: number) => `02:bd:${hex(home.number)}:${hex(slot >> 8)}:${hex(slot & 255)}:${hex(last)}`
  const bytes = [networkNumber >> 16, (networkNumber >> 8) & 255, networkNumber & 255]
  const digits = (address: string) => writtenOut(address.split('/')[0]!)
  return {
    'private-link': `${portPrefix(home)}${slot}`,
    'private-bridge': `${bridgePrefix(home)}${networkNumber}`,
    'private-bridge-mac': `02:bf:${hex(home.number)}:${bytes.map(hex).join(':')}`,
    'private-host-mac': mac(1),
    'private-mac': mac(2),
    'private-address': digits(machineAddress(home.number, networkNumber, slot)),
    'private-network': digits(networkPrefix(home.number, networkNumber)),
    'private-gateway': digits(gatewayAddress(home.number, networkNumber)),
    'private-resolver': digits(resolverAddress(home.number)),
    'private-rules': rules.file,
    'private-table': rules.table,
    'private-chain': rules.chain,
    'private-lock': paths.lock,
    'private-notes': paths.notes,
  }
}

function hex(byte: number): string {
  return byte.toString(16).padStart(2, '0')
}

/** Of each machine to the resolver, so that a flood costs the host little. */
const mostAsked = '2000/second burst 2000 packets'

/**
 * `networks` holds which addresses belong to a bridge, `sources` which ones a machine may send from. Both outlive this.
 * Packets between machines of one bridge come by `forward` too where the kernel is set to show them to it. What listens on all
 * addresses of the host is not meant for machines, also where an address of the platform in their network leads to it.
 */
function renderRules(home: Numbered): string {
  const name = privateTable(home)
  const bridges = `"${bridgePrefix(home)}*"`
  const ports = `"${portPrefix(home)}*"`
  const resolver = resolverAddress(home.number)
  const asks = `ip6 daddr ${resolver} meta l4proto { tcp, udp } th dport 53`
  const neighbours = 'icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept'
  return `
table inet ${name} {
  set networks { type ifname . ipv6_addr; flags interval; }
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
flush chain inet ${name} input
flush chain inet ${name} forward
flush chain inet ${name} arriving
flush chain inet ${name} passing
flush chain bridge ${name} sending
table inet ${name} {
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
    ${asks} socket wildcard 0 accept
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
    iifname ${ports} ${asks} update @asks { iifname limit rate over ${mostAsked} } drop
    iifname ${ports} iifname . ip6 saddr @sources accept
    iifname ${ports} drop
  }
}
`
}

interface PrivateRules {
  file: string
  table: string
  /** An empty chain that is there when the rules are. */
  chain: string
}

/** The rules as a file, which every machine puts in force before it has a network: a reboot takes them away. */
function ensurePrivateRules(home: Home): PrivateRules {
  const paths = privatePaths(home)
  const table = privateTable(home)
  const rules = renderRules(home)
  const chain = `version-${createHash('sha256').update(rules).digest('hex').slice(0, 16)}`
  const before = /^add chain \S+ \S+ (version-\w+)$/m.exec(readTextIfPresent(paths.rules) ?? '')?.[1]
  if (before === chain) return { file: paths.rules, table, chain }
  mkdirSync(paths.notes, { recursive: true, mode: 0o700 })
  // Adding it first makes the deletion right whether it was there or not.
  const forget = before ? `add chain inet ${table} ${before}\ndelete chain inet ${table} ${before}\n` : ''
  ensureFile(paths.rules, `${rules}add chain inet ${table} ${chain}\n${forget}`, { mode: 0o600 })
  return { file: paths.rules, table, chain }
}

let answer: Promise<string | undefined> | undefined

/** Undefined where machines can have private networks; else why not. Found out by trying, once. */
export function findPrivateGap(): Promise<string | undefined> {
  answer ??= tryPrivateNetwork()
  return answer
}

export async function privateNetworksPossible(): Promise<boolean> {
  return (await findPrivateGap()) === undefined
}

/** In a network namespace that goes with the attempt. */
async function tryPrivateNetwork(): Promise<string | undefined> {
  if (!isRoot()) return 'Berth runs as an ordinary user'
  const lacking = ['perl', 'ip', 'nft', 'unshare'].find((name) => !commandExists(name))
  if (lacking) return `${lacking} is not installed`
  if (readTextIfPresent('/proc/sys/net/ipv6/conf/lo/disable_ipv6')?.trim() !== '0') return 'IPv6 is switched off'
  const bridge = 'ip link add bn type bridge && ip link add bm type veth peer name eth1 && ip link set bm master bn'
  const script = `${bridge} && ip -6 addr add fdaa::1/80 dev bn nodad && nft -f -`
  try {
    await run('unshare', ['-n', 'sh', '-c', script], { input: renderRules({ number: 0 }), timeoutSeconds: 10 })
    return undefined
  } catch (error) {
    return (error as Error).message.replace(/\.$/, '')
  }
}

/** Where names are answered. On the loopback interface, so that it is there without a machine. */
export async function ensureResolverAddress(homeNumber: number): Promise<void> {
  await run('ip', ['-6', 'addr', 'replace', `${resolverAddress(homeNumber)}/128`, 'dev', 'lo', 'nodad'])
}

/** When a machine has gone: networks without machines have no bridge. */
export async function removeUnusedBridges(home: Home): Promise<void> {
  if (!isRoot() || !readdirSync('/sys/class/net').some((name) => name.startsWith(bridgePrefix(home)))) return
  const { lock } = privatePaths(home)
  await run(findCommand('perl')!, [driverProgram('network/private-sweep.pl'), bridgePrefix(home), lock])
}

/** Everything of a home's private networks, which its machines have left. */
export async function removePrivateNetworks(home: Home): Promise<void> {
  const links = readdirSync('/sys/class/net').filter((name) => name.startsWith(portPrefix(home)))
  for (const link of links) await run('ip', ['link', 'delete', link]).catch(() => undefined)
  await removeUnusedBridges(home)
  // Adding it first makes the deletion right whether it was there or not.
  const tables = ['inet', 'bridge'].map((family) => `${family} ${privateTable(home)}`)
  const input = tables.map((table) => `add table ${table}\ndelete table ${table}\n`).join('')
  await run('nft', ['-f', '-'], { input }).catch(() => undefined)
  for (const address of listLoopbackAddresses(home)) {
    await run('ip', ['-6', 'addr', 'del', `${address}/128`, 'dev', 'lo']).catch(() => undefined)
  }
}

/** The resolver's, and those of services. */
function listLoopbackAddresses(home: Numbered): string[] {
  const lines = (readTextIfPresent('/proc/net/if_inet6') ?? '').split('\n')
  const own = lines.filter((line) => line.startsWith(`fdaa${hex(home.number)}`) && line.endsWith(' lo'))
  return own.map((line) => line.slice(0, 32).match(/.{4}/g)!.join(':'))
}
