import type { MachineService } from '../../model/app/machine-config.ts'
import type { AppRouteRow, MachineRouteRow, StoredCertificate } from '../../store/app/route.ts'
import type { BoxNetwork, WorkerShare } from '../types.ts'
import { type AppPort, parsePort } from './app-port.ts'
import { type Target, updateTarget } from './target.ts'

/** An app as the edge knows it: its host names and addresses, the ports it offers, and the machines behind them. */
export interface AppRoute {
  kind: 'app'
  id: string
  name: string
  orgId: string
  /** The private network of the app. */
  network: string
  /** The app may replay requests to apps in other networks of its organization. */
  crossesNetworks: boolean
  /** Empty when the app has no public address: then it gets requests only by replays of other apps. */
  hosts: string[]
  /** Host names that the owner added. The platform's own host names take precedence. */
  customHosts: string[]
  /** Every subdomain of the app's host name belongs to the app. */
  hasSubdomains: boolean
  /** Addresses of this app alone. */
  addresses: string[]
  /** The addresses that are reachable only from a private network. */
  privateAddresses: string[]
  /** Addresses that the app shares with other apps. */
  sharedAddresses: string[]
  ports: Map<number, AppPort>
  /** UDP ports, which are numbered separately. */
  datagramPorts: Map<number, AppPort>
  /** The ports that serve plain and TLS connections to the edge's own port. */
  plain: AppPort | undefined
  secure: AppPort | undefined
  targets: Target[]
  certificates: StoredCertificate[]
}

export interface AppOptions {
  domain: string
  boxes: BoxNetwork
  worker: WorkerShare
}

const maxPortsPerApp = 256

/** Targets of the previous route are reused, so that their load is not lost. */
export function createAppRoute(row: AppRouteRow, options: AppOptions, previous: AppRoute | undefined): AppRoute {
  const app = createEmptyRoute(row, options.domain)
  const known = new Map(previous?.targets.map((target) => [target.key, target]))
  // Running machines come first: they decide the options of a port if versions differ.
  const machines = row.machines.toSorted((a, b) => Number(b.state === 'started') - Number(a.state === 'started'))
  for (const machine of machines)
    for (const service of machine.services) addService(app, known, machine, service, options)
  app.plain = findWebPort(app, 80, false)
  app.secure = findWebPort(app, 443, true)
  return app
}

function createEmptyRoute(row: AppRouteRow, domain: string): AppRoute {
  const isPublic = row.ips.some(({ type }) => type !== 'private_v6' && !type.startsWith('egress'))
  const reachable = row.ips.filter(({ type }) => !type.startsWith('egress'))
  return {
    kind: 'app',
    id: row.id,
    name: row.name,
    orgId: row.orgId,
    network: row.network,
    crossesNetworks: row.crossNetworkReplays,
    hosts: isPublic ? [`${row.name}.${domain}`] : [],
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
}

function addService(
  app: AppRoute,
  known: Map<string, Target>,
  machine: MachineRouteRow,
  service: MachineService,
  options: AppOptions,
): void {
  if (!service.ports?.length) return
  const ports = service.protocol === 'udp' ? app.datagramPorts : app.ports
  const find = (key: string) => app.targets.find((each) => each.key === key) ?? known.get(key)
  const target = updateTarget(machine, service, options, find)
  if (!app.targets.includes(target)) app.targets.push(target)
  for (const port of service.ports) {
    const [first, last] = [port.port ?? port.start_port, port.port ?? port.end_port ?? port.start_port]
    if (first === undefined || last === undefined) continue
    for (let number = first; number <= last; number++) {
      if (!ports.has(number) && ports.size >= maxPortsPerApp) break
      const offered = ports.get(number) ?? parsePort(number, port)
      ports.set(number, offered)
      if (!offered.targets.includes(target)) offered.targets.push(target)
    }
  }
}

function findWebPort(app: AppRoute, standardPort: number, tls: boolean): AppPort | undefined {
  const standard = app.ports.get(standardPort)
  if (standard?.http) return standard
  const http = [...app.ports.values()].filter((port) => port.http)
  return http.find((port) => port.tls === tls) ?? http[0] ?? standard
}

/** The app's port that a connection to a local port is for. */
export function findPort(app: AppRoute, localPort: number, isSecure: boolean, edgePort: number): AppPort | undefined {
  if (localPort !== edgePort) return app.ports.get(localPort)
  return isSecure ? app.secure : app.plain
}

/** True if an app may replay requests to another. Apps of other organizations are treated as missing. */
export function mayReplay(from: AppRoute, to: AppRoute): boolean {
  return from.orgId === to.orgId && (from.network === to.network || from.crossesNetworks)
}
