// What the edge knows of an app: its names and addresses, the ports it offers to clients, and the places behind them.
import type { CheckResult, MachineState } from '../../model/app/machine.ts'
import { listChecks } from '../../model/app/machine-check-list.ts'
import type { MachineService } from '../../model/app/machine-config.ts'
import type { AppRouteRow, MachineRouteRow, StoredCertificate } from '../../store/app/route.ts'
import type { BoxPlaces } from '../settings.ts'
import { findPlace, type Place } from '../types.ts'
import { type AppPort, portOf } from './app-port.ts'

export interface AppRoute {
  kind: 'app'
  id: string
  name: string
  orgId: string
  /** The private network that it is in, and whether its requests may be led to others of the organization. */
  network: string
  crossesNetworks: boolean
  /** Empty when it has no address that everybody can reach: then only other apps lead to it. */
  hosts: string[]
  /** Names given by its owners, which the platform's own go before. */
  customHosts: string[]
  /** Every name below its own is its too. */
  hasSubdomains: boolean
  /** Addresses of its own. */
  addresses: string[]
  /** Those of them that only machines of a private network can reach. */
  privateAddresses: string[]
  /** Addresses that it shares with other apps. */
  sharedAddresses: string[]
  ports: Map<number, AppPort>
  /** Those of services of datagrams, which are apart from the others. */
  datagramPorts: Map<number, AppPort>
  /** For what arrives at the port of the edge itself. */
  plain: AppPort | undefined
  secure: AppPort | undefined
  targets: Target[]
  certificates: StoredCertificate[]
}

/** One service of one version of a machine, and how it fares here. */
export class Target implements Place {
  readonly key: string
  readonly machineId: string
  readonly address: string | null
  readonly from: string | undefined
  readonly port: number
  region = ''
  state: MachineState = 'stopped'
  /** It may be given requests as far as the platform knows. */
  isOpen = false
  /** It has been started, and nothing says yet that it will not take requests in a moment. */
  isRising = false
  isCordoned = false
  autostarts = false
  softLimit = 0
  hardLimit = 0
  /** The hard limit is that of all workers together, and each place is asked for. */
  isCounted = false
  /** There was no place when one was last asked for; it is asked again then, or when a place is told of. */
  fullUntil = 0
  /** Requests under way here. */
  load = 0
  /** The most of them since this was last asked for. */
  peak = 0
  /** Connections that failed in a row, and until when none is tried. */
  failures = 0
  badUntil = 0

  constructor(key: string, machineId: string, place: Pick<Place, 'address' | 'from'>, port: number) {
    this.key = key
    this.machineId = machineId
    this.address = place.address
    this.from = place.from
    this.port = port
  }
}

export interface AppOptions {
  domain: string
  boxes: BoxPlaces
  /** Of all workers, which one this is: each takes its share of the limits. */
  worker: { index: number; count: number }
}

const maxPortsOfApp = 256
const defaultSoftLimit = 20
/** A limit of which a worker would have less than this is counted exactly, which takes a moment longer. */
const smallShare = 4
/** One worker carries all datagrams of an app. */
const alone = { index: 0, count: 1 }

export function appRouteOf(row: AppRouteRow, options: AppOptions, before: AppRoute | undefined): AppRoute {
  const known = new Map(before?.targets.map((target) => [target.key, target]))
  const isPublic = row.ips.some(({ type }) => type !== 'private_v6' && !type.startsWith('egress'))
  const reachable = row.ips.filter(({ type }) => !type.startsWith('egress'))
  const app: AppRoute = {
    kind: 'app',
    id: row.id,
    name: row.name,
    orgId: row.orgId,
    network: row.network,
    crossesNetworks: row.crossNetworkReplays,
    hosts: isPublic ? [`${row.name}.${options.domain}`] : [],
    customHosts: isPublic ? row.hosts : [],
    hasSubdomains: isPublic && row.enableSubdomains,
    addresses: reachable.filter(({ shared }) => !shared).map(({ ip }) => ip),
    privateAddresses: row.ips.filter(({ type }) => type === 'private_v6').map(({ ip }) => ip),
    sharedAddresses: reachable.filter(({ shared }) => shared).map(({ ip }) => ip),
    ports: new Map(),
    datagramPorts: new Map(),
    plain: undefined,
    secure: undefined,
    targets: [],
    certificates: row.certificates,
  }
  // Those that run decide what a port is like where versions differ.
  const machines = row.machines.toSorted((a, b) => Number(b.state === 'started') - Number(a.state === 'started'))
  for (const machine of machines)
    for (const service of machine.services) addService(app, known, machine, service, options)
  app.plain = findEntry(app, 80, false)
  app.secure = findEntry(app, 443, true)
  return app
}

function addService(
  app: AppRoute,
  known: Map<string, Target>,
  machine: MachineRouteRow,
  service: MachineService,
  options: AppOptions,
): void {
  if (!service.ports?.length) return
  const isUdp = service.protocol === 'udp'
  const ports = isUdp ? app.datagramPorts : app.ports
  const target = targetOf(app, known, machine, service, isUdp ? { ...options, worker: alone } : options)
  for (const port of service.ports) {
    const [first, last] = [port.port ?? port.start_port, port.port ?? port.end_port ?? port.start_port]
    if (first === undefined || last === undefined) continue
    for (let number = first; number <= last; number++) {
      if (!ports.has(number) && ports.size >= maxPortsOfApp) break
      const offered = ports.get(number) ?? portOf(number, port)
      ports.set(number, offered)
      if (!offered.targets.includes(target)) offered.targets.push(target)
    }
  }
}

function targetOf(
  app: AppRoute,
  known: Map<string, Target>,
  machine: MachineRouteRow,
  service: MachineService,
  { boxes, worker }: AppOptions,
): Target {
  const place = findPlace(boxes, machine.slot)
  const kind = service.protocol === 'udp' ? '/udp' : ''
  const key = `${machine.id} ${machine.instanceId} ${place.address}:${service.internal_port}${kind}`
  const same = app.targets.find((each) => each.key === key)
  const target = same ?? known.get(key) ?? new Target(key, machine.id, place, service.internal_port)
  if (!same) app.targets.push(target)
  const wasOpen = target.isOpen
  target.region = machine.region
  target.state = machine.state
  target.isCordoned = machine.cordoned
  const health = healthOf(machine)
  target.isOpen = machine.state === 'started' && !machine.cordoned && health === 'passing'
  target.isRising = isStarting.has(machine.state) || (machine.state === 'started' && health === 'warning')
  target.autostarts = service.autostart ?? machine.autostarts
  const hard = service.concurrency?.hard_limit || Number.POSITIVE_INFINITY
  const soft = Math.min(service.concurrency?.soft_limit || (Number.isFinite(hard) ? hard : defaultSoftLimit), hard)
  target.softLimit = shareOf(soft, worker)
  target.isCounted = worker.count > 1 && hard < worker.count * smallShare
  target.hardLimit = target.isCounted ? hard : shareOf(hard, worker)
  if (target.isOpen && !wasOpen) target.badUntil = 0
  return target
}

const isStarting = new Set(['starting', 'restarting'])

/** The worst of the checks that requests depend on; those that have not been made yet have not passed. */
function healthOf({ services, checks, statuses }: MachineRouteRow): CheckResult['status'] {
  const gates = listChecks({ services, ...(checks && { checks }) }).filter(({ isGate }) => isGate)
  const found = gates.map(({ name }) => statuses?.[name] ?? 'warning')
  return worst.find((status) => found.includes(status)) ?? 'passing'
}

const worst = ['critical', 'warning'] as const

/** Never nothing, because no worker could then lead anything there. */
function shareOf(limit: number, { index, count }: AppOptions['worker']): number {
  if (!Number.isFinite(limit)) return limit
  return Math.max(1, Math.floor(limit / count) + (index < limit % count ? 1 : 0))
}

function findEntry(app: AppRoute, usual: number, tls: boolean): AppPort | undefined {
  const first = app.ports.get(usual)
  if (first?.http) return first
  const http = [...app.ports.values()].filter((port) => port.http)
  return http.find((port) => port.tls === tls) ?? http[0] ?? first
}

/** The port of the app that a connection to this port of ours is for. */
export function findPort(app: AppRoute, localPort: number, isSecure: boolean, edgePort: number): AppPort | undefined {
  if (localPort !== edgePort) return app.ports.get(localPort)
  return isSecure ? app.secure : app.plain
}

/** Whether a program of one app may have requests given to another. Apps of others are as if they were not there. */
export function mayReplay(from: AppRoute, to: AppRoute): boolean {
  return from.orgId === to.orgId && (from.network === to.network || from.crossesNetworks)
}

const webPorts = [80, 443]

/** At a shared address, where only the name that a client of TLS asks for tells apps apart. */
export function isFurtherPort(port: number, edgePort: number): boolean {
  return port !== edgePort && !webPorts.includes(port)
}

/** Everybody has a part of the ports of a shared address. */
const maxSharedPortsOfApp = 16
const maxSharedPorts = 1_024

/** Where connections for these apps arrive, as `address port`, in a fixed order: what all apps need is never the last. */
export function listensOf(apps: Iterable<AppRoute>, edgePort: number): string[] {
  const found = new Set<string>()
  const further = new Set<string>()
  for (const app of apps) {
    const secure = [...app.ports.values()].filter(({ tls, port }) => tls && isFurtherPort(port, edgePort))
    for (const address of app.sharedAddresses) {
      for (const port of [edgePort, ...webPorts]) found.add(`${address} ${port}`)
      for (const { port } of secure.slice(0, maxSharedPortsOfApp)) further.add(`${address} ${port}`)
    }
    for (const address of app.addresses) {
      for (const port of [edgePort, ...app.ports.keys()]) found.add(`${address} ${port}`)
    }
  }
  return [...[...found].sort(), ...[...further].sort().slice(0, maxSharedPorts)]
}
