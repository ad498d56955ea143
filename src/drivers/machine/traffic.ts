// What a machine may receive and send. The rules lie in its network namespace, which belongs to the host: nobody inside
// can change them, they hold for both of its links, and they go with it.
import { closeSync, existsSync, openSync, rmSync } from 'node:fs'
import type { OpenPorts } from '../../model/app/network-policy.ts'
import { platformAddresses } from '../../model/network.ts'
import { findResolvers } from '../box/network.ts'
import { findProgram } from '../box/process.ts'
import { ensureFile } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { run } from '../host/process.ts'
import type { MachineTraffic } from './driver.ts'
import type { MachinePaths } from './paths.ts'
import { isBusy } from './process.ts'

const secret = { mode: 0o600 }

/** The next start goes by it. */
export function prepareTraffic(home: Home, paths: MachinePaths, traffic: MachineTraffic): void {
  if (isRestricted(traffic)) ensureFile(paths.traffic, renderTraffic(home, traffic), secret)
  else rmSync(paths.traffic, { force: true })
}

/** For what runs and for what the supervisor starts again. False while that is just happening. */
export async function holdTraffic(home: Home, paths: MachinePaths, traffic: MachineTraffic): Promise<boolean> {
  if (!isRestricted(traffic) && !existsSync(paths.traffic)) return true
  ensureFile(paths.traffic, renderTraffic(home, traffic), secret)
  const first = findProgram(paths.service)?.first
  if (first === undefined) return !isBusy(paths)
  const namespace = openSync(`/proc/${first}/ns/net`, 'r')
  try {
    // Otherwise the number may be that of another process by now, and the namespace that of the host.
    if (findProgram(paths.service)?.first !== first) return false
    await run('nsenter', [`--net=/proc/${process.pid}/fd/${namespace}`, 'nft', '-f', paths.traffic])
    return findProgram(paths.service)?.first === first
  } finally {
    closeSync(namespace)
  }
}

function isRestricted({ policy }: MachineTraffic): boolean {
  return policy?.ingress !== undefined || policy?.egress !== undefined
}

/**
 * Whole and at once. Packets of whoever began a connection are looked at each time, so that one that is no longer allowed
 * ends; answers to them pass. Over the first link nobody but the host reaches a machine.
 */
function renderTraffic(home: Home, { network, policy }: MachineTraffic): string {
  const platform = network ? `{ ${platformAddresses(home.number, network.number).join(', ')} }` : undefined
  const egress = policy?.egress && [
    'type filter hook output priority 0; policy accept;',
    'oifname "lo" accept',
    ...always,
    ...(platform ? [`ip6 daddr ${platform} accept`] : openResolvers()),
    ...open(policy.egress),
    'reject with icmpx admin-prohibited',
  ]
  const ingress = policy?.ingress && [
    'type filter hook input priority 0; policy accept;',
    'iifname { "lo", "eth0" } accept',
    ...always,
    ...(platform ? [`ip6 saddr ${platform} accept`] : []),
    ...open(policy.ingress),
    'drop',
  ]
  return `add table inet traffic
delete table inet traffic
table inet traffic {
${renderChain('leaving', egress)}${renderChain('arriving', ingress)}}
`
}

const always = [
  'ct direction reply accept',
  'ct state related accept',
  'icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept',
]

/** Where a machine without a private network asks for names. */
function openResolvers(): string[] {
  const resolvers = findResolvers()
  return resolvers.length > 0
    ? [`ip daddr { ${resolvers.join(', ')} } meta l4proto { tcp, udp } th dport 53 accept`]
    : []
}

function open(ports: OpenPorts): string[] {
  return (['tcp', 'udp'] as const)
    .filter((protocol) => ports[protocol].length > 0)
    .map((protocol) => `${protocol} dport { ${ports[protocol].join(', ')} } accept`)
}

function renderChain(name: string, lines: string[] | undefined): string {
  return lines ? `  chain ${name} {\n${lines.map((line) => `    ${line}\n`).join('')}  }\n` : ''
}
