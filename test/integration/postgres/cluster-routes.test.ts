import { beforeEach, describe, expect, test } from 'vitest'
import type { Route } from '../../../src/api/http/route.ts'
import { platformRoutes } from '../../../src/api/routes.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()

const clusterRoutes = platformRoutes.filter(({ path }) => /^\/v1\/postgres|^\/api\/v1\/.*postgres/.test(path))
const named = (routes: Route[]) => routes.map((route) => [route.id, route] as const)

/** Operations that answer a token of another organization with something else than 404. */
const strangers: Record<string, number> = {
  // The CA certificate is the same for all clusters and public.
  getAuthority: 200,
  adoptClusters: 401,
  getAdoption: 401,
  createApp: 404,
  listApps: 404,
  getApp: 403,
  deleteApp: 403,
  createOrg: 403,
  getOrg: 404,
  updateOrg: 404,
  createToken: 404,
  createKmsToken: 404,
  revokeToken: 404,
  rotateRootToken: 403,
  getPlacements: 404,
  flyctlGetOrganization: 404,
  flyctlCreateRelease: 403,
  flyctlUpdateRelease: 404,
  flyctlCreateBuild: 403,
  flyctlFinishBuild: 403,
  flyctlCreateBuilder: 404,
  // It is refused to everyone.
  flyctlEnsureDepotBuilder: 422,
  authorizeTokens: 403,
  // Only machines can use these, by their own address.
  createIdentityToken: 403,
  // These answer only with what belongs to the token.
  listOrgs: 200,
  listQuotas: 200,
  listTokens: 200,
  currentToken: 200,
  authenticateTokens: 200,
  graphql: 200,
  flyctlListOrganizations: 200,
  flyctlListReleaseTimes: 200,
  listRegions: 200,
}

/** Parts of an app, organization or cluster are refused like the whole. */
function refusalOf(route: Route): number | undefined {
  if (route.id in strangers) return strangers[route.id]
  if (/^(\/api)?\/v1\/apps\/\{app_name\}\//.test(route.path)) return 403
  return clusterRoutes.includes(route) || route.path.startsWith('/v1/orgs/{org_slug}/') ? 404 : undefined
}

interface Schema {
  type?: string
  enum?: unknown[]
  minimum?: number
  properties?: Record<string, Schema>
  required?: string[]
}

/** A valid value for the schema, so that only the token can be the reason of a refusal. */
function sampleOf(schema: Schema, name = ''): unknown {
  if (name === 'org_slug') return 'personal'
  if (schema.enum) return schema.enum[0]
  if (schema.type === 'object') {
    const required = (schema.required ?? []).map((key) => [key, sampleOf(schema.properties![key]!, key)])
    return Object.fromEntries(required)
  }
  if (schema.type === 'integer') return schema.minimum ?? 1
  if (schema.type === 'boolean') return true
  return name === 'plan' ? 'basic' : 'mine'
}

let clusterId = ''

beforeEach(async () => {
  const body = { org_slug: 'personal', plan: 'basic' }
  clusterId = (await platform.call('POST', '/v1/postgres', { body })).body.data.id
  await platform.createApp('mine')
  await platform.createOrg('acme')
})

/** Calls the operation on resources of `personal` with this token. */
function ask(route: Route, token: string | null) {
  const path = route.path
    .replaceAll('{postgres_cluster_id}', clusterId)
    .replaceAll('{org_slug}', 'personal')
    .replaceAll(/\{\w+\}/g, 'mine')
  const query = new URLSearchParams(sampleOf((route.query ?? { type: 'object' }) as Schema) as Record<string, string>)
  const body = route.body && { ...(sampleOf(route.body as Schema) as object), ...extras[route.id] }
  return platform.call(route.method, `${path}?${query}`, { token, ...(body ? { body } : {}) })
}

/** Bodies for operations that need a combination of optional fields. */
const extras: Record<string, object> = {
  createApp: { app_name: 'free', org_slug: 'personal' },
  createToken: { kind: 'read', org_slug: 'personal' },
  authorizeTokens: { access: { app_name: 'mine', action: 'r' } },
  flyctlCreateUserV1: { user_name: 'mine' },
  flyctlCreateUserV2: { username: 'mine' },
}

/** Everything that a refused request must not change. */
async function everything() {
  return {
    clusters: await platform.sql('select id, state from cluster'),
    users: await platform.sql('select username, password from cluster_user'),
    attachments: await platform.sql('select * from attachment'),
    apps: await platform.sql('select id, state from app'),
    work: await platform.sql('select kind, resource_id, wakes from work'),
    made: platform.fake.created,
  }
}

describe.each(named(platformRoutes))('%s rejects a request', (_id, route) => {
  test('without a token', async () => {
    const before = await everything()
    expect(await ask(route, null)).toMatchObject({ status: 401, headers: { 'www-authenticate': 'Bearer' } })
    expect(await everything()).toEqual(before)
  })

  test('with an unknown token', async () => {
    const before = await everything()
    expect((await ask(route, `berth_${'x'.repeat(43)}`)).status).toBe(401)
    expect(await everything()).toEqual(before)
  })

  test('with a sandbox token', async () => {
    const token = await platform.createToken('sandbox', 'personal', { sandbox: 'dev' })
    const before = await everything()
    expect((await ask(route, token)).status).toBe(401)
    expect(await everything()).toEqual(before)
  })

  test('with a token of another organization', async () => {
    const token = await platform.createToken('org', 'acme')
    const before = await everything()
    const reply = await ask(route, token)
    expect(reply.status).toBe(refusalOf(route) ?? 'a refusal')
    expect(JSON.stringify(reply.body).replaceAll('"personal":', '')).not.toMatch(/personal/)
    expect(await everything()).toEqual(before)
  })
})

describe.each(named(clusterRoutes))('%s', (id, route) => {
  const isRefusedToReaders = route.scope === 'write' || /getCredentials/i.test(id)

  test(isRefusedToReaders ? 'rejects a read-only token' : 'accepts a read-only token', async () => {
    const token = await platform.createToken('read', 'personal')
    const before = await everything()
    const reply = await ask(route, token)
    if (isRefusedToReaders) expect(reply).toMatchObject({ status: 401, body: { error: 'this token may only read' } })
    else expect([200, 422]).toContain(reply.status)
    expect(await everything()).toEqual(before)
  })

  test('does not document status 403', () => {
    expect(Object.keys(route.errors)).not.toContain('403')
  })
})

test.each(['postgres', 'template1'])('does not reveal to other organizations that %s is reserved', async (name) => {
  const paths = [
    ['GET', `users/${name}/credentials`],
    ['POST', `users/${name}/rotate_password`],
    ['DELETE', `users/${name}`],
    ['DELETE', `databases/${name}`],
    ['GET', `databases/${name}/extensions`],
    ['DELETE', `databases/${name}/extensions/citext`],
  ] as const
  const foreign = await platform.createToken('org', 'acme')
  for (const [method, path] of paths) {
    const url = `/v1/postgres/${clusterId}/${path}`
    expect((await platform.call(method, url, { token: `berth_${'x'.repeat(43)}` })).status, path).toBe(401)
    expect((await platform.call(method, url, { token: foreign })).status, path).toBe(404)
  }
})

test('answers the same for a missing cluster and for one of another organization', async () => {
  const token = await platform.createToken('org', 'acme')
  const answers = async () => {
    const replies = []
    for (const route of clusterRoutes) replies.push({ ...(await ask(route, token)), headers: {} })
    return replies
  }
  const foreign = await answers()
  clusterId = 'abcdefghij123456'
  expect(await answers()).toEqual(foreign)
})

test('every operation has a case here', () => {
  const uncovered = platformRoutes.filter((route) => refusalOf(route) === undefined)
  expect(uncovered.map((route) => route.id)).toEqual([])
  const outdated = Object.keys(strangers).filter((id) => !platformRoutes.some((route) => route.id === id))
  expect(outdated).toEqual([])
})
