// Network policies of machines, as nftables rules in the machine's network namespace. The namespace belongs to the host,
// so programs inside cannot change the rules. They apply to both interfaces and disappear with the namespace.
import { closeSync, existsSync, openSync, rmSync } from 'node:fs'
import type { MachineTraffic } from '../../model/app/machine-spec.ts'
import type { OpenPorts } from '../../model/app/network-policy.ts'
import { platformAddresses } from '../../model/network.ts'
import { findResolvers } from '../box/network.ts'
import { ensureFile } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'
import { run } from '../host/process.ts'
import { findRunning } from './container.ts'
import type { MachinePaths } from './paths.ts'
import { isBusy } from './process.ts'

const secret = { mode: 0o600 }

/** Writes the rules for the next start. */
export function prepareTraffic(home: Home, paths: MachinePaths, traffic: MachineTraffic): void {
  if (isRestricted(traffic)) ensureFile(paths.traffic, renderTraffic(home, traffic), secret)
  else rmSync(paths.traffic, { force: true })
}

/** Applies the rules to the running program and to restarts. Returns false while a start is in progress. */
export async function applyTraffic(home: Home, paths: MachinePaths, traffic: MachineTraffic): Promise<boolean> {
  if (!isRestricted(traffic) && !existsSync(paths.traffic)) return true
  ensureFile(paths.traffic, renderTraffic(home, traffic), secret)
  const first = findRunning(paths)?.first
  if (first === undefined) return !isBusy(paths)
  const namespace = openSync(`/proc/${first}/ns/net`, 'r')
  try {
    // The pid may have been reused before the file was opened, and the namespace may then be the host's.
    if (findRunning(paths)?.first !== first) return false
    await run('nsenter', [`--net=/proc/${process.pid}/fd/${namespace}`, 'nft', '-f', paths.traffic])
    return findRunning(paths)?.first === first
  } finally {
    closeSync(namespace)
  }
}

function isRestricted({ policy }: MachineTraffic): boolean {
  return policy?.ingress !== undefined || policy?.egress !== undefined
}

/**
 * nft replaces the table in one transaction. Packets in the direction that opened a connection are checked every time, so
 * connections that are no longer allowed break; replies pass. Only the host reaches a machine over its first interface.
 */
function renderTraffic(home: Home, { network, policy }: MachineTraffic): string {
  const platform = network ? `{ ${platformAddresses(home.number, network.number).join(', ')} }` : undefined
  const egress = policy?.egress && [
    'type filter hook output priority 0; policy accept;',
    'oifname "lo" accept',
    ...alwaysAllowed,
    ...(platform ? [`ip6 daddr ${platform} accept`] : allowResolvers()),
    ...allowPorts(policy.egress),
    'reject with icmpx admin-prohibited',
  ]
  const ingress = policy?.ingress && [
    'type filter hook input priority 0; policy accept;',
    'iifname { "lo", "eth0" } accept',
    ...alwaysAllowed,
    ...(platform ? [`ip6 saddr ${platform} accept`] : []),
    ...allowPorts(policy.ingress),
    'drop',
  ]
  return `add table inet traffic
delete table inet traffic
table inet traffic {
${renderChain('leaving', egress)}${renderChain('arriving', ingress)}}
`
}

const alwaysAllowed = [
  'ct direction reply accept',
  'ct state related accept',
  'icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept',
]

/** A machine without a private network uses the host's resolvers. */
function allowResolvers(): string[] {
  const resolvers = findResolvers()
  return resolvers.length > 0
    ? [`ip daddr { ${resolvers.join(', ')} } meta l4proto { tcp, udp } th dport 53 accept`]
    : []
}

function allowPorts(ports: OpenPorts): string[] {
  return (['tcp', 'udp'] as const)
    .filter((protocol) => ports[protocol].length > 0)
    .map((protocol) => `${protocol} dport { ${ports[protocol].join(', ')} } accept`)
}

function renderChain(name: string, lines: string[] | undefined): string {
  return lines ? `  chain ${name} {\n${lines.map((line) => `    ${line}\n`).join('')}  }\n` : ''
}
