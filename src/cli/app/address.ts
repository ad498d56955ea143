// Where clients reach an app, which depends on its addresses and on the ports of its services.
import type { IpAssignment, IpAssignmentList } from '../api-types.ts'
import { encodeSegment, request, type Session } from '../client.ts'
import { listMachines, type Service } from './machine-find.ts'
import { askGraphql } from './release.ts'

export interface AppAddresses {
  /** Undefined while the app has no public address, and for an app that serves no HTTP. */
  url: string | undefined
  /** Addresses of ports that do not serve HTTP, such as `tcp://127.1.0.7:5432`. */
  endpoints: string[]
  isPublic: boolean
  /** True when a port can only be reached at an own address, and the app has none. */
  lacksOwnAddress: boolean
}

interface OfferedPort {
  protocol: string
  number: string
  handlers: string[]
}

/** What to run when a port cannot be reached at the shared address. */
export function ownAddressCommand(app: string): string {
  return `berth ips allocate-v4 -a ${app}`
}

/** Plain TCP and UDP do not name the app that a client wants, so the address that apps share cannot serve them. */
export function needOwnAddress(services: Service[]): boolean {
  return listPorts(services).some(needsOwnAddress)
}

export function offerPorts(services: Service[]): boolean {
  return services.some(({ ports }) => ports?.length)
}

export async function findAddresses(session: Session, app: string): Promise<AppAddresses> {
  const path = `/v1/apps/${encodeSegment(app)}/ip_assignments`
  const { ips } = await request<IpAssignmentList>(session, 'GET', path)
  const open = ips.filter(({ type, egress }) => type !== 'private_v6' && !egress)
  if (open.length === 0) return { url: undefined, endpoints: [], isPublic: false, lacksOwnAddress: false }
  const query = 'query($name: String!) { app(name: $name) { appUrl } }'
  const { appUrl } = (await askGraphql<{ app: { appUrl: string } }>(session, query, { name: app })).app
  const machines = await listMachines(session, app)
  const ports = listPorts(machines.flatMap(({ config }) => config.services ?? []))
  const endpoints = ports.flatMap((port) => endpointsOf(port, open, new URL(appUrl).hostname))
  return {
    url: ports.length === 0 || ports.some(servesHttp) ? appUrl : undefined,
    endpoints: [...new Set(endpoints)],
    isPublic: true,
    lacksOwnAddress: ports.some(needsOwnAddress) && open.every(({ shared }) => shared),
  }
}

function listPorts(services: Service[]): OfferedPort[] {
  return services.flatMap(({ protocol, ports = [] }) =>
    ports.map(({ port, start_port: first, end_port: last, handlers }) => ({
      protocol,
      number: first === undefined || first === last ? String(port ?? first) : `${first}-${last}`,
      handlers: handlers ?? [],
    })),
  )
}

function servesHttp({ protocol, handlers }: OfferedPort): boolean {
  return protocol !== 'udp' && handlers.includes('http')
}

function needsOwnAddress({ protocol, handlers }: OfferedPort): boolean {
  return protocol === 'udp' || !(handlers.includes('http') || handlers.includes('tls'))
}

function endpointsOf(port: OfferedPort, ips: IpAssignment[], host: string): string[] {
  const { protocol, number, handlers } = port
  if (servesHttp(port)) return []
  if (protocol !== 'udp' && handlers.includes('tls')) return [`tls://${host}:${number}`]
  const own = ips.filter(({ shared }) => !shared)
  return own.map(({ ip }) => `${protocol}://${ip.includes(':') ? `[${ip}]` : ip}:${number}`)
}
