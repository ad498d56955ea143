// The requests that flyctl sends for each of its commands, with its field selections, variable names and token schemes.
import { beforeEach, describe, expect, test } from 'vitest'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
let token = ''

beforeEach(async () => {
  token = await platform.createToken('org', 'personal', { format: 'fm2' })
})

/** flyctl sends `FlyV1` to the machines interface and GraphQL, and `Bearer` to the other routes. */
function call(method: 'GET' | 'POST' | 'PATCH' | 'DELETE', path: string, body?: object) {
  const scheme = path.startsWith('/api/v1') ? 'Bearer' : 'FlyV1'
  const headers = { authorization: `${scheme} ${token}`, 'content-type': 'application/json' }
  return platform.call(method, path, { token: null, headers, ...(body ? { body } : {}) })
}

async function graphql(query: string, variables: object = {}) {
  const { status, body } = await call('POST', '/graphql', { query, variables })
  expect(status).toBe(200)
  expect(body.errors).toBeUndefined()
  return body.data
}

const appCompact = `query ($appName: String!) { appcompact: app(name: $appName) { id name hostname deployed status appUrl
  platformVersion organization { id slug paidPlan } postgresAppRole: role { name } } }`

const appFull = `query ($appName: String!) { app(name: $appName) { id name hostname deployed status version appUrl
  platformVersion currentRelease { evaluationId status inProgress version } config { definition }
  organization { id slug paidPlan } services { description protocol internalPort ports { port handlers } }
  ipAddresses { nodes { id address type createdAt } } imageDetails { registry repository tag digest version }
  machines { nodes { id name config state region createdAt app { name } ips { nodes { family kind ip maskSize } } host { id } } }
  postgresAppRole: role { name } limitedAccessTokens { nodes { id name expiresAt } } } }`

const organizationData = `fragment OrganizationData on Organization { id slug rawSlug paidPlan addOnSsoLink
  provisionsBetaExtensions name billable }`

describe('flyctl', () => {
  test('auth whoami, orgs list, platform regions', async () => {
    const { viewer } = await graphql(
      'query { viewer { ... on User { id email enablePaidHobby } ... on Macaroon { email } } }',
    )
    expect(viewer.email).toMatch(/^org-.*@/)
    const { organizations } = await graphql(
      `query ($admin: Boolean!) { organizations(admin: $admin) { nodes { id slug name type paidPlan billable viewerRole
        internalNumericId } } }`,
      { admin: false },
    )
    expect(organizations.nodes).toMatchObject([{ slug: 'personal', type: 'PERSONAL', viewerRole: 'admin' }])
    expect((await call('GET', '/api/v1/organizations?admin=true')).body.organizations).toMatchObject([
      { slug: 'personal', raw_slug: 'personal', personal: true, billing_status: 'CURRENT' },
    ])
    const { platform: answer } = await graphql(
      'query { platform { requestRegion regions { name code latitude longitude gatewayAvailable requiresPaidPlan } } }',
    )
    expect(answer.regions.find(({ code }: { code: string }) => code === answer.requestRegion)).toBeDefined()
    const regions = await call('GET', '/v1/platform/regions')
    expect(regions.body).toMatchObject({ nearest: 'local', regions: expect.any(Array) })
    expect(regions.body.regions[0]).toEqual({
      code: 'local',
      name: 'local',
      latitude: 0,
      longitude: 0,
      geo_region: null,
      gateway_available: true,
      requires_paid_plan: false,
      deprecated: false,
      mpg_available: true,
    })
  })

  test('apps create, list, destroy', async () => {
    const made = await call('POST', '/v1/apps?wait=true', {
      name: 'shop',
      org_slug: 'personal',
      network: '',
      app_role_id: '',
    })
    expect(made).toMatchObject({ status: 201, body: { name: 'shop', status: 'pending', network: 'default' } })
    expect((await call('GET', '/v1/apps/shop')).body).toMatchObject({
      name: 'shop',
      organization: { slug: 'personal' },
    })
    const list = `query ($org: ID, $role: String, $after: String) { apps(type: "container", first: 200, after: $after,
      organizationId: $org, role: $role) { pageInfo { hasNextPage endCursor } nodes { id name deployed hostname platformVersion
      organization { slug name } currentRelease { createdAt status } status } } }`
    const bySlug = `query ($slug: String!) { organization(slug: $slug) { id internalNumericId slug name type billable
      limitedAccessTokens { nodes { id name expiresAt user { email } } } } }`
    const { organization } = await graphql(bySlug, { slug: 'personal' })
    expect(organization.limitedAccessTokens.nodes).toHaveLength(1)
    for (const variables of [{ after: '' }, { org: organization.id, after: '' }]) {
      const { apps } = await graphql(list, variables)
      expect(apps).toMatchObject({ pageInfo: { hasNextPage: false }, nodes: [{ name: 'shop', currentRelease: null }] })
    }
    const { app } = await graphql(appFull, { appName: 'shop' })
    expect(app).toMatchObject({ id: 'shop', version: 0, imageDetails: null, machines: { nodes: [] } })
    const addOns =
      'query ($slug: String!, $type: AddOnType!) { organization(slug: $slug) { addOns(type: $type) { nodes { id name } } } }'
    expect((await graphql(addOns, { slug: 'personal', type: 'tigris' })).organization.addOns.nodes).toEqual([])
    expect((await call('DELETE', '/v1/apps/shop')).status).toBe(202)
    const gone = await call('POST', '/graphql', { query: appCompact, variables: { appName: 'shop' } })
    expect(gone.body.errors[0].message).toContain('Could not find App')
    expect((await call('GET', '/v1/apps/shop')).body.error).toBe('app not found')
  })

  test('ips allocate-v4, allocate-v6, list, release', async () => {
    await platform.createApp('shop')
    const allocate = `mutation ($input: AllocateIPAddressInput!) { allocateIpAddress(input: $input) { ipAddress { id address type
      region createdAt } } }`
    const v6 = await graphql(allocate, { input: { appId: 'shop', type: 'v6', region: '' } })
    const shared = await graphql(
      'mutation ($input: AllocateIPAddressInput!) { allocateIpAddress(input: $input) { app { sharedIpAddress } } }',
      { input: { appId: 'shop', type: 'shared_v4' } },
    )
    const { app } = await graphql(
      `query ($appName: String!) { app(name: $appName) { ipAddresses { nodes { id address type region createdAt network { name
        organization { slug } } serviceName } } sharedIpAddress } }`,
      { appName: 'shop' },
    )
    expect(app.ipAddresses.nodes).toMatchObject([{ address: v6.allocateIpAddress.ipAddress.address, type: 'v6' }])
    expect(app.sharedIpAddress).toBe(shared.allocateIpAddress.app.sharedIpAddress)
    const egress = `query ($appName: String!) { app(name: $appName) { egressIpAddresses { nodes { id ip version region } }
      machines { nodes { id egressIpAddresses { nodes { id ip version region } } } } } }`
    expect((await graphql(egress, { appName: 'shop' })).app.egressIpAddresses.nodes).toEqual([])
    await graphql(
      'mutation ($input: ReleaseIPAddressInput!) { releaseIpAddress(input: $input) { clientMutationId } }',
      {
        input: { appId: 'shop', ip: v6.allocateIpAddress.ipAddress.address },
      },
    )
    expect((await call('GET', '/v1/apps/shop/machines')).body).toEqual([])
  })

  test('secrets set --stage, list, unset', async () => {
    await platform.createApp('shop')
    expect((await graphql(appCompact, { appName: 'shop' })).appcompact).toMatchObject({ deployed: false })
    const set = await call('POST', '/v1/apps/shop/secrets', { values: { A: 'b', GONE: null } })
    expect(set).toMatchObject({ status: 200, body: { Version: 1, secrets: [{ name: 'A' }] } })
    expect((await call('GET', '/v1/apps/shop/secrets?version=1&show_secrets=false')).body.secrets).toHaveLength(1)
    expect((await call('GET', '/api/v1/apps/shop/releases?limit=1')).body).toEqual({ releases: [] })
    expect((await call('POST', '/v1/apps/shop/secrets', { values: { A: null } })).body.secrets).toEqual([])
  })

  test('machine run, list, status, stop, start, destroy', async () => {
    await platform.createApp('shop')
    await graphql(appCompact, { appName: 'shop' })
    expect(
      (await graphql('query ($name: String!) { app(name: $name) { network } }', { name: 'shop' })).app.network,
    ).toBe('default')
    expect((await call('GET', '/api/v1/organizations/personal')).body.organization).toMatchObject({ slug: 'personal' })
    const resolve = `query ($appName: String!, $imageRef: String!) { app(name: $appName) { id image(ref: $imageRef) { id digest ref
      compressedSize: compressedSizeFull manifest } } }`
    const { image } = (await graphql(resolve, { appName: 'shop', imageRef: 'nginx' })).app
    expect(image.compressedSize).toMatch(/^\d+$/)
    const body = { config: { image: image.ref, guest: { cpu_kind: 'shared', cpus: 1, memory_mb: 256 } }, region: '' }
    const made = (await call('POST', '/v1/apps/shop/machines', body)).body
    const path = `/v1/apps/shop/machines/${made.id}`
    await platform.workUntil('machine', 'started')
    expect((await call('GET', `${path}/wait?instance_id=${made.instance_id}&state=started&timeout=5`)).body.ok).toBe(
      true,
    )
    expect((await call('GET', path)).body).toMatchObject({ state: 'started', checks: [] })
    expect((await call('POST', `${path}/stop`, { id: made.id })).body).toEqual({ ok: true })
    await platform.workUntil('machine', 'stopped')
    expect((await call('POST', `${path}/start`)).body).toMatchObject({ previous_state: 'stopped' })
    await platform.workUntil('machine', 'started')
    const { app } = await graphql(appFull, { appName: 'shop' })
    expect(app.machines.nodes).toMatchObject([{ id: made.id, state: 'started', app: { name: 'shop' } }])
    expect((await call('DELETE', `${path}?kill=true`)).body).toEqual({ ok: true })
  })

  test('deploy records a release', async () => {
    await platform.createApp('shop')
    const none = await call('GET', '/api/v1/apps/shop/releases/current')
    expect(none).toMatchObject({ status: 404, body: { errors: { detail: 'release not found' } } })
    const request = {
      app_name: 'shop',
      build_id: 0,
      definition: { app: 'shop' },
      image: 'nginx@sha256:1',
      strategy: 'ROLLING',
    }
    const { release } = (await call('POST', '/api/v1/releases', request)).body
    expect(release).toMatchObject({ version: 1, status: 'pending', in_progress: true, stable: false })
    const done = await call('PATCH', `/api/v1/releases/${release.id}`, { status: 'complete', metadata: null })
    expect(done).toMatchObject({ status: 200, body: { id: release.id, stable: true, in_progress: false } })
    expect((await call('GET', '/api/v1/apps/shop/releases/current')).body).toMatchObject({
      version: 1,
      image_ref: 'nginx@sha256:1',
    })
    expect(Object.keys((await call('GET', '/api/v1/releases/all_current')).body)).toEqual(['shop'])
    for (let i = 0; i < 3; i++) await call('POST', '/api/v1/releases', { ...request, strategy: '' })
    const { releases } = (await call('GET', '/api/v1/apps/shop/releases?limit=2')).body
    expect(releases.map(({ version }: { version: number }) => version)).toEqual([4, 3])
    expect((await call('POST', '/api/v1/releases', { ...request, app_name: 'none' })).status).toBe(404)
    await call('DELETE', '/v1/apps/shop')
    await platform.work()
    expect(await platform.sql('select 1 from release')).toEqual([])
  })
})

describe('flyctl mpg', () => {
  const create = async (family = 'postgresv2', extra: object = {}) => {
    const body = {
      name: 'main',
      region: 'iad',
      org_slug: 'personal',
      plan: 'starter',
      pg_major_version: '17',
      ...extra,
    }
    const made = await call('POST', `/api/v1/organizations/personal/${family}`, body)
    expect(made.status, JSON.stringify(made.body)).toBe(201)
    return made.body
  }

  test('create, list, status, destroy', async () => {
    const { organization } = await graphql(
      `query GetOrganization($slug: String!) { organization(slug: $slug) { ...OrganizationData } } ${organizationData}`,
      { slug: 'personal' },
    )
    expect(organization.rawSlug).toBe('personal')
    const regions = (await call('GET', '/api/v1/organizations/personal/postgresv2/regions')).body.data
    expect(regions).toEqual(expect.arrayContaining([{ code: 'iad', available: true }]))
    const made = await create('postgresv2', { storage_in_gb: 20, postgis_enabled: false })
    expect(made).toMatchObject({
      ok: true,
      data: { name: 'main', status: 'creating', plan: 'starter', disk: 20, region: 'iad' },
    })
    const { id } = made.data
    const early = (await call('GET', `/api/v1/postgresv2/${id}`)).body
    expect(early).toMatchObject({
      data: { mpgd_cluster_id: id },
      credentials: { status: 'initializing', password: '' },
    })
    await platform.workUntil('cluster', 'ready')
    const ready = (await call('GET', `/api/v1/organizations/personal/postgresv2/${id}`)).body
    expect(ready.data).toMatchObject({
      status: 'ready',
      engine: 'postgres',
      ip_assignments: { direct: 'localhost' },
      replicas: 0,
    })
    expect(ready.credentials).toMatchObject({ status: 'ready', user: 'fly-user', dbname: 'fly-db' })
    expect(ready.credentials.pgbouncer_uri).toMatch(
      new RegExp(`^postgresql://fly-user:${ready.credentials.password}@${id}.pg.internal:5432/fly-db$`),
    )
    await platform.sql('delete from cluster_user') // as when its owner deletes the default user
    const closed = (await call('GET', `/api/v1/postgresv2/${id}`)).body
    expect(closed.credentials).toEqual({ ...ready.credentials, password: '', pgbouncer_uri: '' })
    const list = (await call('GET', '/api/v1/organizations/personal/postgres')).body.data
    expect(list).toMatchObject([{ id, mpgd_cluster_id: id, version: 2, name: 'main', attached_apps: [] }])

    const first = (await call('GET', `/api/v1/postgres/${id}`)).body
    expect(first.data).not.toHaveProperty('mpgd_cluster_id')
    expect((await call('GET', '/api/v1/postgresv2/abcdefghij012345')).status).toBe(404)
    expect((await call('GET', `/api/v1/organizations/other/postgresv2/${id}`)).status).toBe(404)
    expect((await call('DELETE', `/api/v1/organizations/other/postgresv2/${id}`)).status).toBe(404)
    expect((await call('DELETE', `/api/v1/organizations/personal/postgresv2/${id}`)).status).toBe(202)
    await platform.workUntil('cluster', 'deleted')
    expect((await call('GET', '/api/v1/organizations/personal/postgres')).body.data).toEqual([])
    const deleted = (await call('GET', '/api/v1/organizations/personal/postgres/deleted')).body.data
    expect(deleted).toMatchObject([{ id, status: 'deleted' }])
  })

  test('backup create, list and restore', async () => {
    const { id } = (await create('postgres', { disk: 0 })).data
    await platform.workUntil('cluster', 'ready')
    const made = await call('POST', `/api/v1/postgresv2/${id}/backups`, { type: 'full' })
    expect([201, 409]).toContain(made.status)
    await platform.workUntil('backup', 'completed')
    const incremental = await call('POST', `/api/v1/postgresv2/${id}/backups`, { type: 'incr' })
    expect(incremental).toMatchObject({
      status: 201,
      body: { data: { type: 'full' }, message: expect.stringContaining('a full backup is being made') },
    })
    await platform.workUntil('backup', 'completed')
    const backups = (await call('GET', `/api/v1/postgresv2/${id}/backups`)).body.data
    expect(backups[0]).toMatchObject({ status: 'completed', type: 'full', start: expect.stringContaining('T') })
    const restored = await call('POST', `/api/v1/postgresv2/${id}/restore`, { backup_id: backups[0].id, name: 'again' })
    expect(restored).toMatchObject({ status: 201, body: { data: { name: 'again', status: 'creating' } } })
    expect((await call('POST', `/api/v1/postgresv2/${id}/restore`, {})).body).toEqual({
      error: 'one of backup_id or pitr_time is required',
      errors: { detail: 'one of backup_id or pitr_time is required' },
    })
  })

  test('users, databases, attach', async () => {
    await platform.createApp('shop')
    const { id } = (await create()).data
    await platform.workUntil('cluster', 'ready')
    const base = `/api/v1/postgresv2/${id}`
    expect((await call('GET', `${base}/users`)).body.data).toEqual([{ name: 'fly-user', role: 'schema_admin' }])
    expect((await call('GET', `${base}/databases`)).body.data).toEqual([{ name: 'fly-db' }])
    const credentials = (await call('GET', `${base}/users/fly-user/credentials`)).body.data
    expect(credentials).toEqual({ username: 'fly-user', password: expect.any(String) })
    expect((await call('GET', `/api/v1/postgres/${id}/users/fly-user/credentials`)).body.data).toEqual({
      user: 'fly-user',
      password: credentials.password,
    })
    expect((await call('POST', `${base}/users`, { role: 'reader' })).status).toBe(422)
    expect((await call('POST', `${base}/users`, { username: 'postgres', role: 'reader' })).status).toBe(400)
    expect((await call('POST', `${base}/users`, { username: '..', role: 'reader' })).status).toBe(422)
    const basic =
      'query ($appName: String!) { appbasic: app(name: $appName) { id name platformVersion organization { id slug rawSlug paidPlan } } }'
    expect((await graphql(basic, { appName: 'shop' })).appbasic.organization.rawSlug).toBe('personal')
    const attached = await call('POST', `${base}/attachments`, { app_name: 'shop' })
    expect(attached).toMatchObject({
      status: 201,
      body: { data: { app_id: expect.any(Number), attached_at: expect.any(String) } },
    })
    expect((await call('GET', base)).body.data.attached_apps).toEqual([{ name: 'shop' }])
    expect((await call('DELETE', `${base}/attachments/shop`)).body.data.message).toContain('shop')
  })

  test('errors are in the field that flyctl reads, and a read-only token gets no password', async () => {
    const { id } = (await create()).data
    await platform.workUntil('cluster', 'ready')
    const taken = await call('POST', '/api/v1/organizations/personal/postgresv2', {
      name: 'main',
      plan: 'basic',
      org_slug: 'personal',
    })
    expect(taken).toMatchObject({ status: 422, body: { errors: { detail: 'name main has already been taken' } } })
    const bad = await call('POST', '/api/v1/organizations/personal/postgresv2', { name: 'x', plan: 'huge' })
    expect(bad.body.errors.detail).toContain('plan must be one of')
    expect((await call('POST', '/api/v1/organizations/none/postgresv2', { name: 'x', plan: 'basic' })).status).toBe(404)
    token = await platform.createToken('read', 'personal', { format: 'fm2' })
    expect((await call('GET', `/api/v1/postgresv2/${id}`)).body.credentials).toEqual({
      status: 'ready',
      user: 'fly-user',
      dbname: 'fly-db',
      password: '',
      pgbouncer_uri: '',
    })
    expect((await call('GET', `/api/v1/postgresv2/${id}/users/fly-user/credentials`)).status).toBe(401)
  })
})
