// Private networks of machines. Each network is a bridge on the host, and each machine has a second veth pair that ends
// there. Machines on one bridge reach each other, the resolver, the API and the platform's listeners in their network.
// Nothing is forwarded from a bridge to another bridge, to a box or to the outside.
import { readdirSync } from 'node:fs'
import { gatewayAddress, machineAddress, networkPrefix, resolverAddress, toHexDigits } from '../../model/network.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'
import { commandExists, findCommand, isRoot, run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import {
  bridgePrefix,
  ensurePrivateRules,
  type Numbered,
  portPrefix,
  privatePaths,
  privateTable,
  renderRules,
} from './private-rules.ts'

/** Returns the configuration of a machine's interface for `private.pl`. */
export function privateNetworkConfig(home: Home, networkNumber: number, slot: number): Record<string, string> {
  const rules = ensurePrivateRules(home)
  const paths = privatePaths(home)
  // The MAC address follows from the IP address, so neighbor caches stay right when another machine gets that address.
  const mac = (last: number) => `02:bd:${hex(home.number)}:${hex(slot >> 8)}:${hex(slot & 255)}:${hex(last)}`
  const bytes = [networkNumber >> 16, (networkNumber >> 8) & 255, networkNumber & 255]
  const digits = (address: string) => toHexDigits(address.split('/')[0]!)
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

let probe: Promise<string | undefined> | undefined

/** Returns why machines cannot have private networks; undefined if they can. Probes once and caches the result. */
export function findPrivateNetworkProblem(): Promise<string | undefined> {
  probe ??= tryPrivateNetwork()
  return probe
}

export async function supportsPrivateNetworks(): Promise<boolean> {
  return (await findPrivateNetworkProblem()) === undefined
}

/** Sets up a bridge and the rules in a temporary network namespace. */
async function tryPrivateNetwork(): Promise<string | undefined> {
  if (!isRoot()) return 'Berth runs as an ordinary user'
  const missing = ['perl', 'ip', 'nft', 'unshare'].find((name) => !commandExists(name))
  if (missing) return `${missing} is not installed`
  if (readTextIfPresent('/proc/sys/net/ipv6/conf/lo/disable_ipv6')?.trim() !== '0') return 'IPv6 is switched off'
  try {
    const script = driverProgram('network/private-probe.sh')
    await run('unshare', ['-n', 'sh', script], { input: renderRules({ number: 0 }), timeoutSeconds: 10 })
    return undefined
  } catch (error) {
    return (error as Error).message.replace(/\.$/, '')
  }
}

/** Adds the address of the resolver to the loopback interface, where it exists without any machine. */
export async function ensureResolverAddress(homeNumber: number): Promise<void> {
  await run('ip', ['-6', 'addr', 'replace', `${resolverAddress(homeNumber)}/128`, 'dev', 'lo', 'nodad'])
}

/** Removes the bridges of networks that have no machine left. */
export async function removeUnusedBridges(home: Home): Promise<void> {
  if (!isRoot() || !readdirSync('/sys/class/net').some((name) => name.startsWith(bridgePrefix(home)))) return
  const { lock } = privatePaths(home)
  await run(findCommand('perl')!, [driverProgram('network/private-sweep.pl'), bridgePrefix(home), lock])
}

/** Removes the bridges, rules and addresses of a home after its machines have ended. */
export async function removePrivateNetworks(home: Home): Promise<void> {
  const links = readdirSync('/sys/class/net').filter((name) => name.startsWith(portPrefix(home)))
  for (const link of links) await run('ip', ['link', 'delete', link]).catch(() => undefined)
  await removeUnusedBridges(home)
  // Deleting a missing table is an error, so it is added first.
  const tables = ['inet', 'bridge'].map((family) => `${family} ${privateTable(home)}`)
  const input = tables.map((table) => `add table ${table}\ndelete table ${table}\n`).join('')
  await run('nft', ['-f', '-'], { input }).catch(() => undefined)
  for (const address of listLoopbackAddresses(home)) {
    await run('ip', ['-6', 'addr', 'del', `${address}/128`, 'dev', 'lo']).catch(() => undefined)
  }
}

/** Lists the addresses of the resolver and of services. */
function listLoopbackAddresses(home: Numbered): string[] {
  const lines = (readTextIfPresent('/proc/net/if_inet6') ?? '').split('\n')
  const own = lines.filter((line) => line.startsWith(`fdaa${hex(home.number)}`) && line.endsWith(' lo'))
  return own.map((line) => line.slice(0, 32).match(/.{4}/g)!.join(':'))
}
