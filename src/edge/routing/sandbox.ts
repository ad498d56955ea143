import type { SandboxRoute as SandboxRouteRow } from '../../store/sandbox/route.ts'
import { type BoxNetwork, boxEndpoint, type Endpoint } from '../types.ts'

/** A sandbox as the edge knows it: its host name, who may use it, and the service behind it. */
export interface SandboxRoute extends Endpoint {
  kind: 'sandbox'
  id: string
  orgId: string
  host: string
  /** Null when the sandbox is public; otherwise requests need a token for it. */
  access: { orgId: string; sandbox: string; adminsOnly: boolean } | null
  /** The sandbox is stopped, and a request starts it. */
  isCold: boolean
  /** The service that claims the port. */
  service: SandboxService | undefined
}

interface SandboxService {
  name: string
  /** False when a user stopped the service; requests do not start it. */
  wanted: boolean
  /** Why the service failed, if it had at the last inspection. */
  failure: string | null
  /** The HTTP health check; null when the service has none or another kind. */
  health: { path: string; port: number } | null
  /** Set for a service whose check is a command, which the control plane runs: when it last passed since the start. */
  readyAtMs?: number | null
}

/** The port of a sandbox in which no service claims one. */
const defaultPort = 8080

export function createSandboxRoute(
  row: SandboxRouteRow,
  options: { sandboxDomain: string; boxes: BoxNetwork },
): SandboxRoute {
  const endpoint = boxEndpoint(options.boxes, row.slot)
  const port = row.httpPort ?? defaultPort
  return {
    kind: 'sandbox',
    id: row.id,
    orgId: row.orgId,
    host: `${row.name}.${options.sandboxDomain}`,
    access: row.urlAuth === 'public' ? null : findAccess(row),
    ...endpoint,
    port,
    key: `${row.id} ${endpoint.address}:${port}`,
    isCold: row.state === 'cold',
    service: row.service === null ? undefined : findService(row),
  }
}

function findAccess({ orgId, name, privateAccess }: SandboxRouteRow): SandboxRoute['access'] {
  return { orgId, sandbox: name, adminsOnly: privateAccess === 'admins' }
}

function findService({ service, wanted, health, readyAtMs, failure }: SandboxRouteRow): SandboxRoute['service'] {
  return {
    name: service!,
    wanted: wanted === true,
    failure,
    health: health && 'http' in health.check ? health.check.http : null,
    ...(health && 'command' in health.check && { readyAtMs }),
  }
}
