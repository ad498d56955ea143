// Network policies: the host names that a box may reach. All DNS queries of the box are redirected to a dnsmasq of its
// own, which resolves only allowed names and adds the addresses to an nftables set; all other addresses are blocked.
import { existsSync, rmSync } from 'node:fs'
import { waitUntil } from '../../model/poll.ts'
import type { BoxSpec } from '../../model/sandbox/box.ts'
import { type NameRule, type NetworkPolicy, nameRules } from '../../model/sandbox/policy.ts'
import { ensureFile } from '../host/atomic-file.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { Home } from '../host/home.ts'
import { commandExists, isRoot, run } from '../host/process.ts'
import type { Supervisor } from '../s6/driver.ts'
import { boxNetwork, ensureRules, findResolvers, nearby, networkTable } from './network.ts'
import { boxPaths } from './paths.ts'

/** An address stays allowed for longer than programs cache it; the limit bounds the size of the set. */
const allowedHours = 24
const maxAddresses = 65_535

interface PolicyHost {
  home: Home
  supervisor: Supervisor
  upstreams?: string[]
}

export function policiesPossible(): boolean {
  return isRoot() && commandExists('nft') && commandExists('dnsmasq')
}

/** To be called before the box starts and when its policy changes. It only compares files when nothing changed. */
export async function ensurePolicy(host: PolicyHost, spec: BoxSpec): Promise<void> {
  const { home, supervisor } = host
  const files = policyFiles(home, spec.id)
  const { policy = { rules: [] } } = spec
  if (policy.rules.length === 0) {
    if (existsSync(files.rules)) await removePolicy(host, spec)
    if (!existsSync(files.shown)) writeShownPolicy(files.shown, policy)
    return
  }
  if (!policiesPossible()) throw new Error('network policies need root, nft and dnsmasq')
  const rules = renderRules(home, spec.slot)
  const resolver = renderResolver(host, spec, policy)
  const isNew = readTextIfPresent(files.rules) !== rules
  if (!isNew && readTextIfPresent(files.resolver) === resolver) return
  ensureFile(files.resolver, resolver, { mode: 0o644 })
  writeShownPolicy(files.shown, policy)
  await supervisor.ensureService(files.service, {
    command: ['dnsmasq', '--keep-in-foreground', `--conf-file=${files.resolver}`],
  })
  await supervisor.restartService(files.service)
  // The rules file is written last and marks the policy as applied. The box loads it again at each start.
  await run('nft', ['-f', ensureRules(home).file])
  await run('nft', ['-f', '-'], { input: rules })
  ensureFile(files.rules, rules, { mode: 0o600 })
}

const resolverSeconds = 10

/** Waits until the resolver of a running box answers: a policy in force allows the names that it allows. */
export async function waitForResolver(home: Home, { slot, policy }: BoxSpec): Promise<void> {
  if (!policy || policy.rules.length === 0) return
  const bytes = boxNetwork(home, slot).hostAddress.split('.').map(Number).reverse()
  const socket = `${bytes.map((byte) => byte.toString(16).padStart(2, '0')).join('')}:0035`.toUpperCase()
  const listens = () => readTextIfPresent('/proc/net/udp')?.includes(` ${socket} `) === true
  if (!(await waitUntil(listens, resolverSeconds))) throw new Error(`the resolver of slot ${slot} does not listen`)
}

/** Writes the file that the box sees. */
function writeShownPolicy(file: string, policy: NetworkPolicy): void {
  ensureFile(file, `${JSON.stringify(policy)}\n`, { mode: 0o644 })
}

export async function removePolicy({ home, supervisor }: PolicyHost, spec: BoxSpec): Promise<void> {
  const files = policyFiles(home, spec.id)
  if (!existsSync(files.resolver)) return
  await removePolicyRules(home, spec.slot)
  rmSync(files.rules, { force: true })
  await supervisor.removeService(files.service)
  rmSync(files.shown, { force: true })
  rmSync(files.resolver, { force: true })
}

/** Removes the rules of a slot from the kernel; there may be none. */
export async function removePolicyRules(home: Home, slot: number): Promise<void> {
  if (policiesPossible()) await run('nft', ['-f', '-'], { input: renderRemoval(home, slot) })
}

function policyFiles(home: Home, id: string) {
  const { directory, policy } = boxPaths(home, id)
  return {
    rules: `${directory}/policy.nft`,
    resolver: `${directory}/resolver.conf`,
    shown: `${policy}/network.json`,
    service: `sandbox-${id}-names`,
  }
}

/** The rules apply to every packet, so connections to hosts that are no longer allowed break. */
function renderRules(home: Home, slot: number): string {
  const table = `inet ${networkTable(home)}`
  const { link, hostAddress } = boxNetwork(home, slot)
  const [chain, names] = [`policy-${slot}`, `names-${slot}`]
  return `add set ${table} ${names} { type ipv4_addr; flags timeout; timeout ${allowedHours}h; size ${maxAddresses}; }
add chain ${table} ${chain}
flush chain ${table} ${chain}
flush set ${table} ${names}
add rule ${table} ${chain} ip daddr { ${nearby.join(', ')} } drop
add rule ${table} ${chain} ip daddr @${names} accept
add rule ${table} ${chain} reject with icmpx admin-prohibited
add element ${table} policies { "${link}" : jump ${chain} }
add element ${table} resolvers { "${link}" : ${hostAddress} }
`
}

/** Deleting what does not exist fails, and a reboot removes everything, so each object is added before it is deleted. */
function renderRemoval(home: Home, slot: number): string {
  const table = `inet ${networkTable(home)}`
  const { link } = boxNetwork(home, slot)
  const [chain, names] = [`policy-${slot}`, `names-${slot}`]
  return `add table ${table}
add map ${table} policies { type ifname : verdict; }
add map ${table} resolvers { type ifname : ipv4_addr; }
${renderRules(home, slot)}delete element ${table} policies { "${link}" : jump ${chain} }
delete element ${table} resolvers { "${link}" }
flush chain ${table} ${chain}
delete chain ${table} ${chain}
delete set ${table} ${names}
`
}

/** Names are made of lower-case letters, digits, dashes, dots and underscores, so they need no quoting. */
function renderResolver(host: PolicyHost, spec: BoxSpec, policy: NetworkPolicy): string {
  const { home, upstreams = findResolvers() } = host
  const { otherwise, rules } = nameRules(policy)
  const { hostAddress } = boxNetwork(home, spec.slot)
  return [
    'no-resolv',
    'no-hosts',
    'no-poll',
    'bind-dynamic', // the address exists only while the box runs
    `listen-address=${hostAddress}`,
    'pid-file=',
    'user=nobody',
    'group=nogroup',
    'cache-size=1000',
    'filter-AAAA', // boxes have no IPv6 addresses
    ...(otherwise ? upstreams.map((upstream) => `server=${upstream}`) : []),
    ...rules.flatMap((rule) => serverLines(rule, upstreams)),
    `nftset=/#/4#inet#${networkTable(home)}#names-${spec.slot}`,
    '',
  ].join('\n')
}

function serverLines({ name, below, allowed }: NameRule, upstreams: string[]): string[] {
  const domain = below ? `*.${name}` : name
  return allowed ? upstreams.map((upstream) => `server=/${domain}/${upstream}`) : [`server=/${domain}/`]
}
