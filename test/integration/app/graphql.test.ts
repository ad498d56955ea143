import fc from 'fast-check'
import { buildClientSchema, getIntrospectionQuery } from 'graphql'
import { describe, expect, test } from 'vitest'
import { ImageError } from '../../../src/drivers/image/driver.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()

async function ask(query: string, variables: object = {}, token?: string) {
  const reply = await platform.call('POST', '/graphql', { body: { query, variables }, ...(token ? { token } : {}) })
  expect(reply.status, JSON.stringify(reply.body)).toBe(200)
  return reply.body
}

const refusal = async (query: string, variables: object = {}, token?: string) => {
  const { errors } = await ask(query, variables, token)
  expect(errors).toHaveLength(1)
  return errors[0]
}

const createApp = `mutation($input: CreateAppInput!) { createApp(input: $input) { app { id name organization { slug } } } }`

describe('a query', () => {
  test('returns the caller', async () => {
    const query = '{ viewer { __typename ... on User { id email enablePaidHobby } ... on Macaroon { email } } }'
    const { data } = await ask(query)
    expect(data.viewer).toEqual({
      __typename: 'User',
      id: 'root',
      email: 'root-root@berth.invalid',
      enablePaidHobby: false,
    })
    const plain = '{ viewer { email organizations { nodes { slug } } } currentUser { name } }'
    expect((await ask(plain)).data.viewer).toMatchObject({ organizations: { nodes: [{ slug: 'personal' }] } })
  })

  test('returns organizations visible to the token, by slug and by id', async () => {
    await platform.createOrg('acme')
    const { data } = await ask(
      '{ organizations(admin: true) { nodes { id slug rawSlug name type viewerRole internalNumericId paidPlan } totalCount } }',
    )
    expect(data.organizations.totalCount).toBe(2)
    const [acme, personal] = data.organizations.nodes
    expect(acme).toMatchObject({ slug: 'acme', rawSlug: 'acme', type: 'SHARED', viewerRole: 'admin' })
    expect(acme.internalNumericId).toMatch(/^\d+$/)
    expect(personal).toMatchObject({ slug: 'personal', name: 'Personal', type: 'PERSONAL' })
    const byId = await ask('query($id: ID) { organization(id: $id) { slug } }', { id: acme.id })
    expect(byId.data.organization.slug).toBe('acme')

    const token = await platform.createToken('read', 'acme')
    const seen = await ask(
      '{ organizations { nodes { slug viewerRole limitedAccessTokens { nodes { id } } } } }',
      {},
      token,
    )
    expect(seen.data.organizations.nodes).toEqual([
      { slug: 'acme', viewerRole: 'member', limitedAccessTokens: { nodes: [] } },
    ])
    for (const given of [{ slug: 'personal' }, { id: personal.id }, { slug: 'none' }, { slug: '../x' }]) {
      const query = 'query($slug: String, $id: ID) { organization(slug: $slug, id: $id) { id } }'
      expect(await refusal(query, given, token)).toEqual({
        message: 'Could not find Organization',
        path: ['organization'],
        locations: expect.anything(),
        extensions: { code: 'NOT_FOUND' },
      })
    }
  })

  test('shows an app', async () => {
    await platform.createApp('shop', { network: 'blue' })
    const { data, errors } = await ask(
      `query($name: String!) { app(name: $name) { id internalNumericId name hostname deployed status version appUrl platformVersion
        network cnameTarget sharedIpAddress config { definition } organization { id slug paidPlan }
        addOns(type: tigris) { nodes { id } } hostIssues { nodes { internalId message createdAt updatedAt } } role { name } secrets { name digest } } }`,
      { name: 'shop' },
    )
    expect(errors).toBeUndefined()
    expect(data.app).toMatchObject({
      id: 'shop',
      name: 'shop',
      hostname: 'shop.berth.localhost',
      appUrl: 'http://shop.berth.localhost:4282/',
      deployed: false,
      status: 'pending',
      platformVersion: 'machines',
      network: 'blue',
      config: { definition: {} },
      organization: { slug: 'personal', paidPlan: true },
      role: null,
      secrets: [],
    })
  })

  test('returns the machines of an app and their services', async () => {
    await platform.createApp('shop')
    const services = [{ protocol: 'tcp', internal_port: 8080, ports: [{ port: 443, handlers: ['tls', 'http'] }] }]
    for (const region of ['fra', 'iad', 'fra']) {
      const body = { region, config: { image: 'nginx:1', services } }
      expect((await platform.call('POST', '/v1/apps/shop/machines', { body })).status).toBe(200)
    }
    await platform.workUntil('machine', 'started')
    const { data } =
      await ask(`{ app(name: "shop") { status deployed regions { code } services { protocol internalPort ports { port handlers } }
      imageDetails { registry repository tag digest version }
      machines { totalCount nodes { id name config state region createdAt app { name } ips { nodes { family kind ip maskSize } } host { id }
        egressIpAddresses { nodes { id ip version region } } } } } }`)
    expect(data.app).toMatchObject({
      status: 'deployed',
      deployed: true,
      regions: [{ code: 'fra' }, { code: 'iad' }],
      services: [{ protocol: 'tcp', internalPort: 8080, ports: [{ port: 443, handlers: ['tls', 'http'] }] }],
      imageDetails: {
        registry: 'docker.io',
        repository: 'library/nginx',
        tag: '1',
        digest: expect.stringMatching(/^sha256:/),
      },
      machines: { totalCount: 3 },
    })
    expect(data.app.machines.nodes[0]).toMatchObject({
      state: 'started',
      config: { image: 'nginx:1' },
      app: { name: 'shop' },
      ips: { nodes: [{ family: 'v6', kind: 'privatenet', ip: expect.stringMatching(/^fdaa:/), maskSize: 112 }] },
    })
    const few = await ask('{ app(name: "shop") { machines(first: 1, state: "started") { nodes { id } } } }')
    expect(few.data.app.machines.nodes).toHaveLength(1)
  })

  test('resolves an image', async () => {
    await platform.createApp('shop')
    platform.fake.images.available = new Set(['docker.io/library/nginx:latest'])
    const query = `query($name: String!, $ref: String!) { app(name: $name) { id image(ref: $ref) { id digest ref compressedSize: compressedSizeFull manifest } } }`
    const { data } = await ask(query, { name: 'shop', ref: 'nginx' })
    expect(data.app.image).toEqual({
      id: `sha256:${'a'.repeat(64)}`,
      digest: `sha256:${'a'.repeat(64)}`,
      ref: 'docker.io/library/nginx:latest',
      compressedSize: '5000000000',
      manifest: { schemaVersion: 2 },
    })
    expect((await refusal(query, { name: 'shop', ref: 'other' })).message).toContain('Could not find Image')
    expect((await refusal(query, { name: 'shop', ref: 'oci:/etc' })).extensions.code).toBe('INVALID')
    expect((await refusal(query, { name: 'shop', ref: 'A B' })).extensions.code).toBe('INVALID')
    const token = await platform.createToken('read', 'personal')
    expect((await refusal(query, { name: 'shop', ref: 'nginx' }, token)).extensions.code).toBe('FORBIDDEN')
  })

  test('reports a missing app, and refuses the app of another organization', async () => {
    await platform.createOrg('acme')
    await platform.createApp('mine')
    const query = 'query($name: String!) { app(name: $name) { id } }'
    for (const name of ['nobody', '../x', 'UPPER', '\u0000', '']) {
      const found = await ask(query, { name })
      expect(found.data).toEqual({ app: null })
      expect(found.errors[0]).toMatchObject({ message: 'Could not find App', path: ['app'] })
    }
    const token = await platform.createToken('org', 'acme')
    expect(await refusal(query, { name: 'mine' }, token)).toMatchObject({
      message: 'unauthorized',
      extensions: { code: 'FORBIDDEN' },
    })
    expect((await ask('{ node(id: "mine") { id ... on App { status } } }')).data.node).toEqual({
      id: 'mine',
      status: 'pending',
    })
  })

  test('pages through the apps of several organizations', async () => {
    await platform.createOrg('acme')
    for (const name of ['b', 'd', 'f']) await platform.createApp(name)
    for (const name of ['a', 'c']) await platform.createApp(name, { org_slug: 'acme' })
    const query = `query($after: String, $org: ID) { apps(type: "container", first: 2, after: $after, organizationId: $org) {
      totalCount pageInfo { hasNextPage endCursor } nodes { name organization { slug } } } }`
    const seen: string[] = []
    let after: string | undefined
    for (let more = true; more; ) {
      const { apps } = (await ask(query, { after })).data
      expect(apps.totalCount).toBe(5)
      seen.push(...apps.nodes.map((app: { name: string; organization: { slug: string } }) => app.name))
      more = apps.pageInfo.hasNextPage
      after = apps.pageInfo.endCursor
    }
    expect(seen).toEqual(['a', 'c', 'b', 'd', 'f'])
    const one = (await ask(query, { org: 'acme', after: '' })).data.apps
    expect(one).toMatchObject({ totalCount: 2, pageInfo: { hasNextPage: false } })
    expect((await refusal(query, { after: 'x' })).extensions.code).toBe('BAD_REQUEST')
    const token = await platform.createToken('read', 'acme')
    expect((await ask('{ apps { nodes { name } } }', {}, token)).data.apps.nodes).toEqual([
      { name: 'a' },
      { name: 'c' },
    ])
    expect((await ask('{ apps(role: "postgres_cluster") { nodes { name } } }')).data.apps.nodes).toEqual([])
  })

  test('reports whether a name is available across organizations', async () => {
    await platform.createApp('shop')
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    const free = async (name: string) =>
      (await ask('query($name: String!) { appNameAvailable(name: $name) }', { name }, token)).data.appNameAvailable
    expect([await free('shop'), await free('fresh'), await free('-odd')]).toEqual([false, true, false])
  })

  test('lists the regions', async () => {
    const { data } = await ask(
      '{ platform { requestRegion regions { name code latitude longitude gatewayAvailable } } nearestRegion { code deprecated } }',
    )
    expect(data.platform.requestRegion).toBe('local')
    expect(data.platform.regions.map((region: { code: string }) => region.code)).toEqual(
      expect.arrayContaining(['local', 'iad', 'fra']),
    )
    expect(data.nearestRegion).toEqual({ code: 'local', deprecated: false })
  })

  test('supports introspection', async () => {
    const { data, errors } = await ask(getIntrospectionQuery())
    expect(errors).toBeUndefined()
    expect(buildClientSchema(data).getType('App')).toBeDefined()
  })
})

describe('a mutation', () => {
  test('creates and deletes an app like the REST interface', async () => {
    await platform.createOrg('acme')
    const { data } = await ask(createApp, { input: { organizationId: 'acme', name: 'new' } })
    expect(data.createApp.app).toEqual({ id: 'new', name: 'new', organization: { slug: 'acme' } })
    expect((await platform.call('GET', '/v1/apps/new')).body).toMatchObject({ organization: { slug: 'acme' } })
    expect(await refusal(createApp, { input: { organizationId: 'personal', name: 'new' } })).toMatchObject({
      message: 'Validation failed: Name has already been taken',
      extensions: { code: 'INVALID', status: 'name_taken' },
    })
    expect((await refusal(createApp, { input: { organizationId: 'personal', name: 'No' } })).message).toContain('63')
    expect((await refusal(createApp, { input: { organizationId: 'none', name: 'x' } })).message).toContain(
      'Organization',
    )
    const gone = await ask('mutation($appId: ID!) { deleteApp(appId: $appId) { organization { slug } } }', {
      appId: 'new',
    })
    expect(gone.data.deleteApp.organization.slug).toBe('acme')
    expect((await platform.call('GET', '/v1/apps/new')).status).toBe(404)
    expect((await refusal('mutation { deleteApp(appId: "new") { clientMutationId } }')).message).toBe(
      'Could not find App',
    )
  })

  test('sets and removes secrets', async () => {
    await platform.createApp('shop')
    const set = `mutation($input: SetSecretsInput!) { setSecrets(input: $input) { release { id } app { secrets { name } } } }`
    const given = (...keys: string[]) => keys.map((key) => ({ key, value: `${key} value` }))
    const first = await ask(set, { input: { appId: 'shop', secrets: given('A', 'B') } })
    expect(first.data.setSecrets).toEqual({ release: null, app: { secrets: [{ name: 'A' }, { name: 'B' }] } })
    const second = await ask(set, { input: { appId: 'shop', secrets: given('C'), replaceAll: true } })
    expect(second.data.setSecrets.app.secrets).toEqual([{ name: 'C' }])
    const unset = 'mutation($input: UnsetSecretsInput!) { unsetSecrets(input: $input) { app { secrets { name } } } }'
    const third = await ask(unset, { input: { appId: 'shop', keys: ['C', 'NOT_THERE'] } })
    expect(third.data.unsetSecrets.app.secrets).toEqual([])
    expect(await refusal(set, { input: { appId: 'shop', secrets: given('1bad') } })).toMatchObject({
      path: ['setSecrets'],
      extensions: { code: 'BAD_REQUEST' },
    })
    expect((await refusal(set, { input: { appId: 'none', secrets: [] } })).message).toBe('Could not find App')
  })

  test('allocates and releases addresses', async () => {
    await platform.createApp('shop')
    const allocate = `mutation($input: AllocateIPAddressInput!) { allocateIpAddress(input: $input) {
      ipAddress { id address type region createdAt serviceName } app { sharedIpAddress } } }`
    const give = async (input: object) =>
      (await ask(allocate, { input: { appId: 'shop', ...input } })).data.allocateIpAddress
    const { ipAddress } = await give({ type: 'v6', region: 'ams', serviceName: 'web' })
    expect(ipAddress).toMatchObject({ type: 'v6', region: 'ams', serviceName: 'web', id: ipAddress.address })
    const shared = await give({ type: 'shared_v4', region: '' })
    expect(shared.app.sharedIpAddress).toBe(shared.ipAddress.address)
    const hidden = await give({ type: 'private_v6', organizationId: 'personal', network: 'blue' })
    expect(hidden.ipAddress.address).toMatch(/^fdaa:/)
    const list =
      '{ app(name: "shop") { sharedIpAddress ipAddresses { nodes { address type network { name organization { slug } } } } egressIpAddresses { nodes { id } } } }'
    const { app } = (await ask(list)).data
    expect(app).toEqual({
      sharedIpAddress: shared.ipAddress.address,
      ipAddresses: {
        nodes: [
          { address: ipAddress.address, type: 'v6', network: null },
          {
            address: hidden.ipAddress.address,
            type: 'private_v6',
            network: { name: 'blue', organization: { slug: 'personal' } },
          },
        ],
      },
      egressIpAddresses: { nodes: [] },
    })
    const release =
      'mutation($input: ReleaseIPAddressInput!) { releaseIpAddress(input: $input) { clientMutationId app { name } } }'
    const taken = await ask(release, { input: { appId: 'shop', ip: ipAddress.address } })
    expect(taken.data.releaseIpAddress.app.name).toBe('shop')
    expect((await ask(release, { input: { appId: 'shop', ipAddressId: hidden.ipAddress.id } })).errors).toBeUndefined()
    expect((await ask(list)).data.app.ipAddresses.nodes).toEqual([])

    for (const [mutation, input, message] of [
      [release, { appId: 'shop', ip: ipAddress.address }, 'the app does not have this address'],
      [release, { appId: 'shop', ip: '../x' }, 'the app does not have this address'],
      [release, { ip: '1.2.3.4' }, 'Could not find App'],
      [allocate, { appId: 'none', type: 'v4' }, 'Could not find App'],
      [allocate, { appId: 'shop', type: 'v4', network: 'blue' }, 'network goes with private_v6 only'],
      [allocate, { appId: 'shop', type: 'v4', serviceName: 'a b' }, 'service_name must be at most 63'],
      [allocate, { appId: 'shop', type: 'private_v6', organizationId: 'none' }, 'Could not find Organization'],
    ] as [string, object, string][]) {
      expect((await refusal(mutation, { input })).message).toContain(message)
    }
  })

  test('creates an organization from a name', async () => {
    const make = `mutation($input: CreateOrganizationInput!) { createOrganization(input: $input) {
      organization { id slug name type } } }`
    const made = await ask(make, { input: { name: ' Acme & Söhne ' } })
    expect(made.data.createOrganization.organization).toMatchObject({
      slug: 'acme-s-hne',
      name: ' Acme & Söhne ',
      type: 'SHARED',
    })
    expect((await refusal(make, { input: { name: 'acme s hne' } })).message).toContain('taken')
    expect((await refusal(make, { input: { name: '…' } })).message).toContain('slug')
    const token = await platform.createToken('org', 'personal')
    expect((await refusal(make, { input: { name: 'mine' } }, token)).message).toContain('only a root token')
  })

  test('creates tokens for an app and for an organization', async () => {
    await platform.createApp('shop')
    await platform.createOrg('acme')
    const make = `mutation($input: CreateLimitedAccessTokenInput!) { createLimitedAccessToken(input: $input) {
      limitedAccessToken { id name token tokenHeader expiresAt } } }`
    const issue = async (input: object) => {
      const given = { name: 'ci', organizationId: 'personal', expiry: '24h', ...input }
      return (await ask(make, { input: given })).data.createLimitedAccessToken.limitedAccessToken
    }
    const deploy = await issue({ profile: 'deploy', profileParams: { app_id: 'shop' } })
    expect(deploy).toMatchObject({ name: 'ci', tokenHeader: `FlyV1 ${deploy.token}`, expiresAt: expect.any(String) })
    expect((await platform.call('GET', '/v1/apps/shop', { token: deploy.token })).status).toBe(200)
    expect((await platform.call('GET', '/v1/apps?org_slug=personal', { token: deploy.token })).status).toBe(401)
    const list = '{ app(name: "shop") { limitedAccessTokens { nodes { id name token } } } }'
    expect((await ask(list)).data.app.limitedAccessTokens.nodes).toEqual([{ id: deploy.id, name: 'ci', token: null }])

    const whole = await issue({ profile: 'deploy_organization', profileParams: {}, expiry: '' })
    expect(whole).toMatchObject({ token: expect.stringMatching(/^fm2_/), expiresAt: expect.any(String) })
    expect((await platform.call('GET', '/v1/apps?org_slug=personal', { token: whole.token })).status).toBe(200)
    expect((await ask(list)).data.app.limitedAccessTokens.nodes).toHaveLength(1)

    const reader = await platform.createToken('read', 'personal')
    for (const [input, message, token] of [
      [{ profile: 'deploy' }, 'Could not find App'],
      [{ profile: 'deploy', profileParams: 'x' }, 'Could not find App'],
      [{ profile: 'deploy', profileParams: { app_id: 'shop' }, organizationId: 'acme' }, 'another organization'],
      [{ profile: 'deploy', profileParams: { app_id: 'shop' }, expiry: 'soon' }, 'expiry must be'],
      [{ profile: 'deploy', profileParams: { app_id: 'shop' }, name: 'x'.repeat(101) }, 'name must'],
      [{ profile: 'machine_exec' }, 'profile must be'],
      [{ profile: 'deploy', profileParams: { app_id: 'shop' } }, 'may only read', reader],
      [{ profile: 'deploy_organization' }, 'may only read', reader],
      [{ profile: 'deploy_organization' }, 'only a root token', whole.token],
    ] as [object, string, string?][]) {
      const given = { name: 'x', organizationId: 'personal', ...input }
      expect((await refusal(make, { input: given }, token)).message).toContain(message)
    }
  })

  test('records releases', async () => {
    await platform.createApp('shop')
    const create = `mutation($input: CreateReleaseInput!) { createRelease(input: $input) { release { id version status inProgress } } }`
    const input = {
      appId: 'shop',
      image: 'registry/shop:1',
      platformVersion: 'machines',
      strategy: 'CANARY',
      definition: { a: '\u0000' },
    }
    const { release } = (await ask(create, { input })).data.createRelease
    expect(release).toMatchObject({ version: 1, status: 'pending', inProgress: true })
    const update =
      'mutation($input: UpdateReleaseInput!) { updateRelease(input: $input) { release { id status stable } } }'
    const done = await ask(update, { input: { releaseId: release.id, status: 'complete' } })
    expect(done.data.updateRelease.release).toEqual({ id: release.id, status: 'complete', stable: true })
    expect((await ask(create, { input: { appId: 'shop', image: 'x' } })).data.createRelease.release.version).toBe(2)
    const { app } = (
      await ask(`{ app(name: "shop") { version config { definition } currentReleaseUnprocessed { imageRef version }
        releases: releasesUnprocessed(first: 5) { nodes { version imageRef deploymentStrategy user { email } createdAt } } } }`)
    ).data
    expect(app).toMatchObject({
      version: 2,
      config: { definition: {} },
      currentReleaseUnprocessed: { imageRef: 'x', version: 2 },
    })
    expect(app.releases.nodes).toMatchObject([
      { version: 2, deploymentStrategy: 'ROLLING' },
      {
        version: 1,
        imageRef: 'registry/shop:1',
        deploymentStrategy: 'CANARY',
        user: { email: 'root-root@berth.invalid' },
      },
    ])
    expect((await refusal(update, { input: { releaseId: release.id, status: 'NOT A WORD' } })).extensions.code).toBe(
      'INVALID',
    )
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    const foreign = await refusal(update, { input: { releaseId: release.id, status: 'failed' } }, token)
    expect(foreign.message).toBe('release not found')
    expect((await refusal(create, { input: { appId: 'shop', image: '' } })).message).toContain('image must be')
    const large = { appId: 'shop', image: 'x', definition: { text: 'x'.repeat(70_000) } }
    expect((await refusal(create, { input: large })).message).toContain('definition must have')
  })

  test('with a read-only token changes nothing', async () => {
    await platform.createApp('shop')
    const token = await platform.createToken('read', 'personal')
    for (const [mutation, input] of [
      [createApp, { organizationId: 'personal', name: 'x' }],
      ['mutation($input: DeleteAppInput!) { deleteApp(input: $input) { clientMutationId } }', { appId: 'shop' }],
      [
        'mutation($input: SetSecretsInput!) { setSecrets(input: $input) { clientMutationId } }',
        { appId: 'shop', secrets: [] },
      ],
      [
        'mutation($input: AllocateIPAddressInput!) { allocateIpAddress(input: $input) { clientMutationId } }',
        { appId: 'shop', type: 'v4' },
      ],
      [
        'mutation($input: ReleaseIPAddressInput!) { releaseIpAddress(input: $input) { clientMutationId } }',
        { appId: 'shop', ip: '1.2.3.4' },
      ],
      [
        'mutation($input: CreateReleaseInput!) { createRelease(input: $input) { clientMutationId } }',
        { appId: 'shop', image: 'x' },
      ],
      [
        'mutation($input: UpdateReleaseInput!) { updateRelease(input: $input) { clientMutationId } }',
        { releaseId: 'x', status: 'failed' },
      ],
      [
        'mutation($input: UnsetSecretsInput!) { unsetSecrets(input: $input) { clientMutationId } }',
        { appId: 'shop', keys: [] },
      ],
    ] as [string, object][]) {
      expect(await refusal(mutation, { input }, token), mutation).toMatchObject({
        message: 'this token may only read',
        extensions: { code: 'FORBIDDEN' },
      })
    }
  })

  test('on another organization is refused', async () => {
    await platform.createApp('shop')
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    const input = { appId: 'shop', secrets: [{ key: 'A', value: 'b' }] }
    const set = 'mutation($input: SetSecretsInput!) { setSecrets(input: $input) { clientMutationId } }'
    expect(await refusal(set, { input }, token)).toMatchObject({ message: 'unauthorized' })
    expect(await refusal('mutation { deleteApp(appId: "shop") { clientMutationId } }', {}, token)).toMatchObject({
      message: 'unauthorized',
    })
    expect((await platform.call('GET', '/v1/apps/shop/secrets')).body.secrets).toEqual([])
  })
})

describe('a rejected request', () => {
  test.each([[null], ['wrong']])('has the token %s', async (token) => {
    const reply = await platform.call('POST', '/graphql', { token, body: { query: '{ viewer { email } }' } })
    expect(reply.status).toBe(401)
    expect(reply.headers['www-authenticate']).toBe('Bearer')
    expect(reply.body).toEqual({
      error: expect.any(String),
      errors: [{ message: reply.body.error, extensions: { code: 'UNAUTHORIZED' } }],
    })
  })

  test.each([
    [{}, 'query is required'],
    [{ query: 5 }, 'query must be a string'],
    [{ query: '{ viewer { email } }', variables: 'x' }, 'variables'],
    [{ query: '{ viewer { email } }', operationName: 5 }, 'operationName'],
  ])('has the body %j', async (body, words) => {
    const reply = await platform.call('POST', '/graphql', { body })
    expect(reply.status).toBe(400)
    expect(reply.body.errors[0].message).toContain(words)
  })

  test.each([
    ['', 'Syntax Error'],
    ['{', 'Syntax Error'],
    ['{ nothing }', 'Cannot query field'],
    ['{ app { id } } fragment A on App { ...A }', 'Cannot spread'],
    ['query A { viewer { email } } query B { viewer { email } }', 'operation name'],
    ['query($x: String!) { app(name: $x) { id } }', '$x'],
    ['subscription { x }', 'subscription'],
    ['mutation { allocateIpAddress(input: { appId: "x", type: v5 }) { clientMutationId } }', 'v5'],
    [`{ ${'a '.repeat(3000)} }`, 'tokens'],
    [`{ __schema { types { ${'fields { type { '.repeat(5)} name ${'} } '.repeat(5)} } } }`, 'introspection depth'],
    [`{ apps { nodes { ${'organization { apps { nodes { '.repeat(8)} id ${'} } } '.repeat(8)} } } }`, 'deeper than 20'],
  ])('has the document %s', async (query, words) => {
    const { data, errors } = await ask(query)
    expect(data ?? null).toBeNull()
    expect(errors[0].message).toContain(words)
    expect(errors[0].extensions.code).toEqual(expect.any(String))
  })

  test('reports unavailability in the response, and an internal error as status 500', async () => {
    await platform.createApp('shop')
    const body = { query: '{ app(name: "shop") { image(ref: "nginx") { id } } }' }
    const failing = (error: Error) =>
      Object.assign(new Set<string>(), {
        has: () => {
          throw error
        },
      })
    platform.fake.images.available = failing(new ImageError('unreachable', 'the registry does not answer'))
    const away = await platform.call('POST', '/graphql', { body })
    expect(away).toMatchObject({ status: 200, body: { data: { app: { image: null } } } })
    expect(away.body.errors).toMatchObject([
      { message: 'the registry does not answer', extensions: { code: 'UNAVAILABLE' } },
    ])
    platform.fake.images.available = failing(new Error('secret of ours'))
    const fault = await platform.call('POST', '/graphql', { body })
    expect(fault.status).toBe(500)
    expect(fault.body).toEqual({
      error: 'internal error',
      errors: [{ message: 'internal error', extensions: { code: 'INTERNAL' } }],
    })
  })

  test('is not repeated for an idempotency key that was used', async () => {
    const body = { query: createApp, variables: { input: { organizationId: 'personal', name: 'once' } } }
    const headers = { 'idempotency-key': 'k' }
    const first = await platform.call('POST', '/graphql', { body, headers })
    expect(first.body.errors).toBeUndefined()
    expect((await platform.call('POST', '/graphql', { body, headers })).body).toEqual(first.body)
  })

  test('has a query with a response that is too large', async () => {
    for (let i = 0; i < 40; i++) await platform.createApp(`app-${i}`)
    const query = `{ apps { nodes { organization { apps { nodes { organization { apps { nodes { id name } } } } } } } } }`
    const { data, errors } = await ask(query)
    expect(data.apps.nodes).toHaveLength(40)
    expect(errors).toMatchObject([
      { message: expect.stringContaining('too expensive'), extensions: { code: 'BAD_REQUEST' } },
    ])
    const many = Array.from({ length: 60 }, (_, i) => `m${i}: deleteApp(appId: "app-${i}") { clientMutationId }`)
    for (const document of [
      `mutation { ${many.join(' ')} }`,
      `mutation { ...All } fragment All on Mutations { ${many.join(' ')} }`,
    ]) {
      expect(await refusal(document)).toMatchObject({ message: 'a request may contain at most 20 mutations, not 60' })
    }
    expect((await platform.call('GET', '/v1/apps?org_slug=personal')).body.total_apps).toBe(40)
  })

  test('has fragments that multiply', async () => {
    const fragments = Array.from(
      { length: 14 },
      (_, i) =>
        `fragment f${i} on App { organization { a: apps { nodes { ...f${i + 1} } } b: apps { nodes { ...f${i + 1} } } } }`,
    )
    await platform.createApp('one')
    const query = `{ apps { nodes { ...f0 } } } ${fragments.join(' ')} fragment f14 on App { id }`
    expect((await ask(query)).errors[0].message).toMatch(/deeper|too much/)
  })

  test('with random tokens only results in errors', async () => {
    const words = fc.constantFrom(
      '{',
      '}',
      '(',
      ')',
      'app',
      'name:',
      '"x"',
      'query',
      '...',
      'on',
      '$a',
      ':',
      '@skip',
      '#',
      '"""',
      '\u0000',
    )
    await fc.assert(
      fc.asyncProperty(
        fc.oneof(
          fc.array(words).map((parts) => parts.join(' ')),
          fc.string({ unit: 'binary' }),
        ),
        async (query) => {
          const { errors } = await ask(query)
          expect(errors.length).toBeGreaterThan(0)
        },
      ),
      { numRuns: 200 },
    )
  })
})
