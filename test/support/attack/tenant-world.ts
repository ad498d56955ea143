// An organization that has one of everything that the API can address, for tests that call every operation.
import type { Route } from '../../../src/api/http/route.ts'
import { platformRoutes, sandboxRoutes } from '../../../src/api/routes.ts'
import { machinesOf } from '../machine-platform.ts'
import type { CallOptions, Reply, usePlatform } from '../platform.ts'

type Platform = ReturnType<typeof usePlatform>

export interface Tenant {
  slug: string
  token: string
  /** The value of each path parameter, by its name. */
  params: Record<string, string>
}

export const allRoutes: Route[] = [...platformRoutes, ...sandboxRoutes]

/** Calls an operation at the listener that serves it. */
export function callRoute(platform: Platform, route: Route, url: string, options: CallOptions): Promise<Reply> {
  const call = platformRoutes.includes(route) ? platform.call : platform.callSandbox
  return call(route.method, url, options)
}

async function must(reply: Promise<Reply>): Promise<Reply['body']> {
  const { status, body } = await reply
  if (status >= 300) throw new Error(`${status} ${JSON.stringify(body)}`)
  return body
}

/** Every name begins with the slug, so that two tenants have no name in common. */
export async function createTenant(platform: Platform, slug: string): Promise<Tenant> {
  await platform.createOrg(slug)
  const token = await platform.createToken('org', slug)
  const post = (path: string, body: object = {}) => must(platform.call('POST', path, { body, token }))
  const postSandbox = (path: string, body: object = {}) => must(platform.callSandbox('POST', path, { body, token }))
  const app = `${slug}-app`
  const hostname = `www.${slug}.example`
  await post('/v1/apps', { app_name: app, org_slug: slug })
  const at = `/v1/apps/${app}`
  const policy = await post(`${at}/network_policies`, {
    name: 'web',
    selector: { all: true },
    rules: [{ action: 'allow', direction: 'ingress', ports: [{ protocol: 'tcp', port: 80 }] }],
  })
  const machine = await machinesOf(platform, app).started({}, { metadata: { key: 'value' } })
  const volume = (await post(`${at}/volumes`, { name: 'data', size_gb: 1 })).id
  await post(`${at}/secrets/NAME`, { value: 'x' })
  await post(`${at}/secretkeys/key/generate`, { type: 'hs256' })
  await platform.sql('insert into host (hostname, app_id) select $1, id from app where name = $2', [hostname, app])
  const { ip } = await post(`${at}/ip_assignments`, { type: 'v6' })
  const { release } = await post('/api/v1/releases', {
    app_name: app,
    image: 'nginx',
    strategy: 'ROLLING',
    definition: {},
  })
  const cluster = (await post('/v1/postgres', { org_slug: slug, plan: 'basic', name: `${slug}-db` })).data.id
  await platform.workUntil('cluster', 'ready')
  const tokens = await must(platform.call('GET', '/v1/tokens', { token }))
  const name = `${slug}-box`
  await postSandbox('/v1/sandboxes', { name, org_slug: slug })
  await postSandbox(`/v1/sandboxes/${name}/tasks`, { name: 'task', expire: '1h' })
  await must(
    platform.callSandbox('PUT', `/v1/sandboxes/${name}/services/web?duration=1ms`, { body: { cmd: 'true' }, token }),
  )
  return {
    slug,
    token,
    params: {
      org_slug: slug,
      app_name: app,
      machine_id: machine,
      volume_id: volume,
      secret_name: 'NAME',
      key_name: 'key',
      key: 'key',
      hostname,
      ip,
      policy_id: policy.id,
      release_id: String(release.id),
      postgres_cluster_id: cluster,
      backup_id: '20260101-000000F',
      username: 'fly-user',
      database: 'fly-db',
      extension: 'citext',
      token_id: tokens.tokens[0].id,
      name,
      session_id: '12345',
      service_name: 'web',
      checkpoint_id: 'v1',
      task_name: 'task',
    },
  }
}

/** The URL of an operation, with these values for its path parameters. */
export function urlOf(route: Route, params: Record<string, string>): string {
  return route.path.replaceAll(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(params[name] ?? 'missing'))
}

export interface Schema {
  type?: string | string[]
  const?: unknown
  enum?: unknown[]
  anyOf?: Schema[]
  examples?: unknown[]
  minimum?: number
  properties?: Record<string, Schema>
  patternProperties?: Record<string, Schema>
  additionalProperties?: Schema | boolean
  required?: string[]
  items?: Schema
}

/** A value that matches the schema, with its required fields only. */
export function sampleOf(schema: Schema, name = '', tenant?: Tenant): unknown {
  if (tenant?.params[name] !== undefined) return tenant.params[name]
  if (schema.const !== undefined) return schema.const
  if (schema.enum) return schema.enum[0]
  if (schema.anyOf) return sampleOf(schema.anyOf[0]!, name, tenant)
  if (schema.properties) {
    const required = (schema.required ?? []).map((key) => [key, sampleOf(schema.properties![key]!, key, tenant)])
    return Object.fromEntries(required)
  }
  if (schema.type === 'object') return {}
  if (schema.type === 'array') return schema.items ? [sampleOf(schema.items, name, tenant)] : []
  if (schema.type === 'integer' || schema.type === 'number') return schema.minimum ?? 1
  if (schema.type === 'boolean') return true
  return name === 'plan' ? 'basic' : 'mine'
}
