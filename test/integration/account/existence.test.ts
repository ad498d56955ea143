// A token learns nothing about other organizations: what exists elsewhere is answered like what does not exist.
import { beforeEach, expect, test } from 'vitest'
import type { Route } from '../../../src/api/http/route.ts'
import {
  allRoutes,
  callRoute,
  createTenant,
  type Schema,
  sampleOf,
  type Tenant,
  urlOf,
} from '../../support/attack/tenant-world.ts'
import type { Reply } from '../../support/platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
let victim: Tenant
let attacker: Tenant

beforeEach(async () => {
  victim = await createTenant(platform, 'victim')
  attacker = await createTenant(platform, 'attacker')
})

/** Values of the same form that belong to nobody. */
const nobody: Record<string, string> = {
  org_slug: 'nobody',
  machine_id: '00000000000000',
  volume_id: 'vol_000000000000',
  secret_name: 'OTHER',
  key_name: 'other',
  key: 'other',
  hostname: 'www.nobody.example',
  ip: 'fd00:1::ffff',
  policy_id: '0000000000000000',
  release_id: '999999999',
  postgres_cluster_id: '0000000000000000',
  backup_id: '20250101-000000F',
  username: 'other',
  database: 'other',
  extension: 'other',
  token_id: '0000000000000000',
  name: 'nobody-box',
  session_id: '54321',
  service_name: 'other',
  checkpoint_id: 'v99',
  task_name: 'other',
}

/** With fake drivers these run on the host itself. */
const runsOnHost = ({ path }: Route) => /\/fs\//.test(path)
const paramsOf = (route: Route) => [...route.path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name!)
const withParams = allRoutes.filter((route) => paramsOf(route).length > 0 && !runsOnHost(route))

/** Fields without which the body is refused before anything is looked up. */
const validBodies: Record<string, object> = {
  createVolume: { name: 'data' },
  flyctlCreateUserV1: { username: 'x' },
  flyctlCreateUserV2: { username: 'x' },
  setNetworkPolicy: { rules: [] },
}

interface Answer {
  status: number
  text: string
  headers: object
}

interface Attempt {
  params: Record<string, string>
  /** The tenant whose names are in the body. */
  body: Record<string, string>
}

async function attempt(route: Route, { params, body }: Attempt): Promise<Answer> {
  const named = { slug: '', token: '', params: body }
  const query = new URLSearchParams(
    sampleOf((route.query ?? { properties: {} }) as Schema, '', named) as Record<string, string>,
  )
  const input = route.body && { ...(sampleOf(route.body as Schema, '', named) as object), ...validBodies[route.id] }
  const reply = await callRoute(platform, route, `${urlOf(route, params)}?${query}`, {
    token: attacker.token,
    ...(input ? { body: input } : {}),
  })
  return comparable(reply, [...Object.values(params), ...Object.values(body)])
}

/** A response without what differs between any two requests, and without the names that the request itself contains. */
function comparable({ status, body, headers }: Reply, names: string[]): Answer {
  const { 'fly-request-id': _id, date: _date, 'content-length': _length, ...rest } = headers
  let text = JSON.stringify(body)
  for (const name of names.toSorted((a, b) => b.length - a.length)) text = text.replaceAll(name, '<name>')
  return { status, text, headers: rest }
}

const cases = withParams.map((route) => [`${route.method} ${route.path}`, route] as const)

test('nothing of another organization is distinguishable from nothing', async () => {
  const differences: object[] = []
  const unexpected: object[] = []
  for (const [name, route] of cases) {
    const own = attacker.params
    // App names are one namespace and documented: 403 is a foreign app, 404 a free name. What is in it must not show.
    const isInApp = paramsOf(route).includes('app_name')
    const base = isInApp && paramsOf(route).length > 1 ? { app_name: victim.params.app_name! } : {}
    const foreign = await attempt(route, { params: { ...victim.params }, body: own })
    const absent = await attempt(route, {
      params: { ...nobody, app_name: victim.params.app_name!, ...base },
      body: own,
    })
    if (JSON.stringify(foreign) !== JSON.stringify(absent)) differences.push({ name, foreign, absent })
    if (foreign.status !== 403 && foreign.status !== 404) unexpected.push({ name, ...foreign })
  }
  expect(differences).toEqual([])
  expect(unexpected).toEqual([])
})

test('ids of another organization are not found inside an own app, cluster or organization', async () => {
  const differences: object[] = []
  const outer = new Set(['app_name', 'org_slug', 'postgres_cluster_id', 'name'])
  for (const [name, route] of cases) {
    const inner = paramsOf(route).filter((param) => !outer.has(param) || param === paramsOf(route).at(-1))
    for (const param of inner) {
      if (victim.params[param] === attacker.params[param]) continue
      const own = attacker.params
      const foreign = await attempt(route, { params: { ...own, [param]: victim.params[param]! }, body: own })
      const absent = await attempt(route, { params: { ...own, [param]: nobody[param]! }, body: own })
      if (param === 'app_name') continue
      if (JSON.stringify(foreign) !== JSON.stringify(absent)) differences.push({ name, param, foreign, absent })
    }
  }
  expect(differences).toEqual([])
})

test('a body that refers to something of another organization is answered as if it did not exist', async () => {
  const { app_name: app, postgres_cluster_id: cluster } = attacker.params
  const { params: theirs } = victim
  // Each is a request as a function of one name, that of the victim and one of the same form that belongs to nobody.
  const requests: [string, string, string, (name: string) => object, string, string][] = [
    ['POST', '/v1/apps', 'org_slug', (org_slug) => ({ org_slug, app_name: 'fresh' }), victim.slug, 'nobody'],
    ['POST', '/v1/postgres', 'org_slug', (org_slug) => ({ org_slug, plan: 'basic' }), victim.slug, 'nobody'],
    ['POST', '/v1/tokens', 'org_slug', (org_slug) => ({ org_slug, kind: 'read' }), victim.slug, 'nobody'],
    ['POST', '/v1/platform/placements', 'org_slug', (org_slug) => ({ org_slug }), victim.slug, 'nobody'],
    [
      'POST',
      `/v1/apps/${app}/volumes`,
      'source_volume_id',
      (id) => ({ name: 'copy', source_volume_id: id }),
      theirs.volume_id!,
      nobody.volume_id!,
    ],
    [
      'POST',
      `/v1/apps/${app}/machines`,
      'mounts',
      (volume) => ({ config: { image: 'nginx', mounts: [{ volume, path: '/data' }] } }),
      theirs.volume_id!,
      nobody.volume_id!,
    ],
    [
      'POST',
      `/v1/apps/${app}/network_policies`,
      'machines',
      (id) => ({ name: 'x', selector: { machines: [{ id }] } }),
      theirs.machine_id!,
      nobody.machine_id!,
    ],
    [
      'POST',
      `/v1/apps/${app}/network_policies`,
      'id',
      (id) => ({ id, name: 'x', selector: { metadata: { none: 'none' } } }),
      theirs.policy_id!,
      nobody.policy_id!,
    ],
    [
      'POST',
      `/v1/apps/${app}/ip_assignments`,
      'org_slug',
      (org_slug) => ({ type: 'private_v6', org_slug }),
      victim.slug,
      'nobody',
    ],
    [
      'POST',
      '/v1/tokens/authorize',
      'machine_id',
      (id) => ({ access: { machine_id: id, action: 'r' } }),
      theirs.machine_id!,
      nobody.machine_id!,
    ],
    [
      'POST',
      '/v1/tokens/authorize',
      'volume_id',
      (id) => ({ access: { volume_id: id, action: 'r' } }),
      theirs.volume_id!,
      nobody.volume_id!,
    ],
    [
      'POST',
      '/v1/tokens/authorize',
      'org_slug',
      (org_slug) => ({ access: { org_slug, action: 'r' } }),
      victim.slug,
      'nobody',
    ],
    [
      'POST',
      `/v1/postgres/${cluster}/restore`,
      'backup_id',
      (backup_id) => ({ backup_id }),
      theirs.backup_id!,
      nobody.backup_id!,
    ],
  ]
  const differences: object[] = []
  for (const [method, path, what, body, foreign, absent] of requests) {
    const ask = async (name: string) =>
      comparable(await platform.call(method as 'POST', path, { body: body(name), token: attacker.token }), [name])
    const answers = [await ask(foreign), await ask(absent)]
    if (JSON.stringify(answers[0]) !== JSON.stringify(answers[1])) differences.push({ path, what, answers })
    if (answers[0]!.status < 400) differences.push({ path, what, answers })
  }
  expect(differences).toEqual([])
})
