// What the operations require of tokens with caveats. An operation whose path names no resource, and which does not declare any,
// concerns the whole platform: only caveats that restrict no resource permit it.
import type { Target } from '../../actions/account/access.ts'
import { action } from '../../model/account/access.ts'
import type { Route, SocketRoute, UncheckedCall } from './route.ts'

export interface Requirement {
  targets: Target[]
  /** Bits of `action`. */
  bits: number
}

export function requirementOf(operation: Route, call: UncheckedCall): Requirement {
  const { targets } = operation
  if (targets === 'none') return { targets: [], bits: action.read }
  return { targets: targets ? targets(call) : pathTargets(operation.path, call.params), bits: bitsOf(operation) }
}

export function socketRequirement(
  route: SocketRoute,
  params: Record<string, string>,
  search: URLSearchParams,
): Requirement {
  const targets = route.targets ? route.targets({ params, search }) : pathTargets(route.path, params)
  return { targets, bits: action[route.action ?? 'control'] }
}

function bitsOf({ action: declared, scope, method }: Route): number {
  if (declared) return action[declared]
  if (scope === 'read') return action.read
  if (method === 'DELETE') return action.delete
  return method === 'PUT' || method === 'PATCH' ? action.write : action.all
}

const sandboxPath = /^\/v1\/(?:sandboxes|sprites)\/\{name\}/
const metadataPath = /\/machines\/\{machine_id\}\/metadata/

export function pathTargets(path: string, params: Record<string, string>): Target[] {
  const { postgres_cluster_id: cluster, app_name: app, machine_id: machine, volume_id: volume } = params
  const targets: Target[] = []
  if (cluster !== undefined) targets.push({ cluster })
  if (app !== undefined)
    targets.push({
      app,
      ...(machine !== undefined && { machine }),
      ...(volume !== undefined && { volume }),
      ...(metadataPath.test(path) && { machineFeature: 'metadata' }),
    })
  if (targets.length > 0) return targets
  if (sandboxPath.test(path)) return [{ sandbox: params.name! }]
  if (params.release_id !== undefined) return [{ release: params.release_id }]
  if (params.org_slug !== undefined) return [{ org: params.org_slug }]
  return ['platform']
}

/** A field of a body or query that may be invalid. */
export function textField(fields: unknown, name: string): string | undefined {
  const value = isRecord(fields) ? fields[name] : undefined
  return typeof value === 'string' ? value : undefined
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null
}

/** The volumes that the configuration of a machine mounts. */
export function mountTargets({ params, body }: UncheckedCall): Target[] {
  const config = isRecord(body) && isRecord(body.config) ? body.config : {}
  const mounts = Array.isArray(config.mounts) ? config.mounts : []
  const volumes = new Set(mounts.map((mount) => textField(mount, 'volume')))
  return [...volumes].flatMap((volume) =>
    volume === undefined ? [] : [{ app: params.app_name ?? '', volume, action: action.write }],
  )
}

/** The volume or snapshot that a new volume is a copy of. */
export function sourceTargets(body: unknown): Target[] {
  const sources = [textField(body, 'source_volume_id'), textField(body, 'snapshot_id')]
  return sources.flatMap((source) => (source ? [{ source }] : []))
}

/** Another cluster is created from the cluster in the path, in its organization. */
export function copiedCluster({ params }: UncheckedCall): Target[] {
  const cluster = params.postgres_cluster_id ?? ''
  return [{ cluster }, { newClusterBeside: cluster }]
}

export function attachment({ params, body }: UncheckedCall): Target[] {
  return [{ cluster: params.postgres_cluster_id ?? '' }, { app: textField(body, 'app_name') ?? '' }]
}

export function orgTargets(slug: string | undefined): Target[] {
  return slug === undefined ? ['platform'] : [{ org: slug }]
}
