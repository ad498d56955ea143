// Tokens as flyctl creates, attenuates and revokes them.
import { beforeEach, describe, expect, test } from 'vitest'
import { attenuate, caveat, masks } from '../../support/macaroon.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const numbers: Record<string, number> = {}

beforeEach(async () => {
  await platform.createOrg('acme')
  for (const name of ['shop', 'other']) await platform.createApp(name)
  await platform.createApp('theirs', { org_slug: 'acme' })
  const rows = await platform.sql(
    'select name, numeric_id as number from app union all select slug, numeric_id from org',
  )
  for (const { name, number } of rows) numbers[name] = number
})

async function ask(query: string, input?: object, authorization = `Bearer ${platform.rootToken}`) {
  const body = { query, ...(input && { variables: { input } }) }
  const reply = await platform.call('POST', '/graphql', { token: null, headers: { authorization }, body })
  expect(reply.status, JSON.stringify(reply.body)).toBe(200)
  return reply.body
}

const createToken = `mutation($input: CreateLimitedAccessTokenInput!) { createLimitedAccessToken(input: $input) {
  limitedAccessToken { id tokenHeader } } }`
const deleteToken = `mutation($input: DeleteLimitedAccessTokenInput!) { deleteLimitedAccessToken(input: $input) { token } }`

async function issue(profile: string, expiry = '175200h0m0s'): Promise<{ id: string; token: string }> {
  const input = { name: 'ci', organizationId: 'personal', profile, profileParams: { app_id: 'shop' }, expiry }
  const { limitedAccessToken } = (await ask(createToken, input)).data.createLimitedAccessToken
  return { id: limitedAccessToken.id, token: limitedAccessToken.tokenHeader.replace('FlyV1 ', '') }
}

const header = (...tokens: string[]) => `FlyV1 ${tokens.join(',')}`
const showApp = (name: string) => `{ app(name: "${name}") { name organization { slug } secrets { name } } }`
const setSecrets = 'mutation($input: SetSecretsInput!) { setSecrets(input: $input) { app { name } } }'
const secrets = (appId: string) => ({ appId, secrets: [{ key: 'A', value: 'x' }] })
const refused = (data: object | null) => ({ data, errors: [expect.objectContaining({ message: expect.any(String) })] })

describe('a deploy token', () => {
  test('uses GraphQL for its app only', async () => {
    const { token } = await issue('deploy')
    expect(await ask(showApp('shop'), undefined, header(token))).toEqual({
      data: { app: { name: 'shop', organization: { slug: 'personal' }, secrets: [] } },
    })
    expect((await ask(setSecrets, secrets('shop'), header(token))).data).toEqual({
      setSecrets: { app: { name: 'shop' } },
    })
    const create = 'mutation($input: CreateReleaseInput!) { createRelease(input: $input) { release { id } } }'
    const made = await ask(create, { appId: 'shop', image: 'x' }, header(token))
    const change = 'mutation($input: UpdateReleaseInput!) { updateRelease(input: $input) { release { status } } }'
    const status = (releaseId: string) => ask(change, { releaseId, status: 'complete' }, header(token))
    expect((await status(made.data.createRelease.release.id)).data.updateRelease.release.status).toBe('complete')
    const foreign = await ask(create, { appId: 'other', image: 'x' })
    expect(await status(foreign.data.createRelease.release.id)).toEqual(refused({ updateRelease: null }))

    const lists = '{ organizations { nodes { slug } } apps { nodes { name } } viewer { id } }'
    expect((await ask(lists, undefined, header(token))).data).toMatchObject({
      organizations: { nodes: [{ slug: 'personal' }] },
      apps: { nodes: [{ name: 'shop' }] },
    })
    for (const name of ['other', 'theirs'])
      expect(await ask(showApp(name), undefined, header(token))).toEqual(refused({ app: null }))
    expect(await ask(setSecrets, secrets('other'), header(token))).toEqual(refused({ setSecrets: null }))
    expect(
      await ask(createToken, { name: 'x', organizationId: 'personal', profile: 'deploy_organization' }, header(token)),
    ).toEqual(refused({ createLimitedAccessToken: null }))
  })

  test.each([
    ['175200h0m0s', 90 * 86_400],
    ['', 90 * 86_400],
    ['24h', 86_400],
    ['87600h0m0s', 87_600 * 3_600],
  ])('with the expiry "%s" of flyctl is valid for %d seconds', async (expiry, seconds) => {
    for (const profile of ['deploy', 'deploy_organization']) {
      const { id } = await issue(profile, expiry)
      const [row] = await platform.sql(
        'select extract(epoch from expires_at - created_at)::int as seconds from token where id = $1',
        [id],
      )
      expect(row.seconds).toBe(seconds)
    }
  })

  test('that flyctl pares down for a shell reads its app, and permits two mutations', async () => {
    const { token } = await issue('deploy')
    const reader = attenuate(token, caveat.action(masks.r))
    const certifier = attenuate(token, caveat.mutations('issueCertificate', 'addWireGuardPeer'))
    const both = header(reader, certifier)
    expect((await ask(showApp('shop'), undefined, both)).data.app.name).toBe('shop')
    expect(await ask(setSecrets, secrets('shop'), both)).toEqual(refused({ setSecrets: null }))
    const setter = attenuate(token, caveat.mutations('setSecrets'))
    expect((await ask(setSecrets, secrets('shop'), header(reader, setter))).data.setSecrets.app.name).toBe('shop')
    expect(await ask(setSecrets, secrets('other'), header(reader, setter))).toEqual(refused({ setSecrets: null }))
  })
})

describe('a token of an organization', () => {
  test('that flyctl makes read-only changes nothing', async () => {
    const { token } = await issue('deploy_organization')
    const reader = header(attenuate(token, caveat.organization(numbers.personal!, masks.r)))
    const query =
      '{ apps { nodes { name } } organization(slug: "personal") { slug limitedAccessTokens { nodes { id } } } }'
    expect((await ask(query, undefined, reader)).data).toEqual({
      apps: { nodes: [{ name: 'other' }, { name: 'shop' }] },
      organization: { slug: 'personal', limitedAccessTokens: { nodes: [] } },
    })
    expect(await ask(setSecrets, secrets('shop'), reader)).toEqual(refused({ setSecrets: null }))
    expect(await ask('{ app(name: "shop") { image(ref: "nginx") { id } } }', undefined, reader)).toEqual(
      refused({ app: { image: null } }),
    )
  })

  test('that is limited to an app sees nothing else, whatever the query', async () => {
    const { token } = await issue('deploy_organization')
    const limited = header(attenuate(token, caveat.apps([numbers.shop!, masks.all])))
    const query = '{ apps { nodes { name organization { apps { nodes { name } totalCount } } } totalCount } }'
    const only = { nodes: [{ name: 'shop' }], totalCount: 1 }
    expect((await ask(query, undefined, limited)).data).toEqual({
      apps: { nodes: [{ name: 'shop', organization: { apps: only } }], totalCount: 1 },
    })
    const paged = await ask('{ apps(first: 1) { nodes { name } pageInfo { hasNextPage } } }', undefined, limited)
    expect(paged.data.apps).toEqual({ nodes: [{ name: 'shop' }], pageInfo: { hasNextPage: false } })
    for (const field of [
      'organization(slug: "personal") { slug }',
      'app(name: "other") { name }',
      'node(id: "other") { id }',
      'node(id: "personal") { id }',
    ]) {
      const { data } = await ask(`{ ${field} }`, undefined, limited)
      expect(Object.values(data), field).toEqual([null])
    }
    for (const [mutation, input] of [
      ['createApp(input: $input) { app { name } }', { organizationId: 'personal', name: 'new' }],
      ['deleteApp(input: $input) { organization { slug } }', { appId: 'other' }],
      ['createOrganization(input: $input) { organization { slug } }', { name: 'mine' }],
      ['deleteLimitedAccessToken(input: $input) { token }', { id: 'x' }],
      ['releaseIpAddress(input: $input) { app { name } }', { appId: 'other', ip: '127.0.0.1' }],
      ['allocateIpAddress(input: $input) { app { name } }', { appId: 'other', type: 'v4' }],
    ] as const) {
      const type = `${mutation[0]!.toUpperCase()}${mutation.slice(1, mutation.indexOf('('))}Input`.replace(
        'IpAddress',
        'IPAddress',
      )
      const { data } = await ask(`mutation($input: ${type}!) { ${mutation} }`, input, limited)
      expect(Object.values(data), mutation).toEqual([null])
    }
    expect(await platform.sql('select count(*) from app')).toEqual([{ count: 3 }])
  })

  test('is revoked by its id or its text, with everything that was derived from it', async () => {
    for (const by of ['id', 'token'] as const) {
      const issued = await issue('deploy_organization')
      const derived = attenuate(issued.token, caveat.action(masks.r))
      expect((await ask(showApp('shop'), undefined, header(derived))).data.app.name).toBe('shop')
      expect(await ask(deleteToken, { [by]: issued[by] })).toEqual({
        data: { deleteLimitedAccessToken: { token: null } },
      })
      for (const authorization of [header(issued.token), header(derived)]) {
        const body = { query: showApp('shop') }
        const reply = await platform.call('POST', '/graphql', { token: null, headers: { authorization }, body })
        expect(reply.status).toBe(401)
      }
    }
    expect(await ask(deleteToken, { id: 'none' })).toEqual(refused({ deleteLimitedAccessToken: null }))
    expect(await ask(deleteToken, {})).toEqual(refused({ deleteLimitedAccessToken: null }))
  })
})

describe('a token of the sandbox SDKs', () => {
  const mint = (org: string, token: string, body: object = { description: 'laptop', invite_code: '' }) =>
    platform.callSandbox('POST', `/v1/organizations/${org}/tokens`, { token, body })

  test('is created with a root token for one organization, and is valid for days', async () => {
    const { status, body } = await mint('acme', platform.rootToken)
    expect(status).toBe(201)
    const made = await platform.callSandbox('POST', '/v1/sprites', { token: body.token, body: { name: 'dev' } })
    expect(made.status).toBe(201)
    expect((await platform.call('GET', '/v1/apps/shop', { token: body.token })).status).toBe(403)
    const rows = await platform.sql(
      `select name, extract(day from expires_at - created_at)::int as days from token where kind = 'org'`,
    )
    expect(rows).toEqual([{ name: 'laptop', days: 90 }])
  })

  test('is refused to other tokens, and for organizations that do not exist', async () => {
    expect((await mint('none', platform.rootToken)).status).toBe(404)
    expect((await mint('acme', platform.rootToken, { description: 5 })).status).toBe(400)
    expect((await mint('acme', 'berth_none')).status).toBe(401)
    for (const kind of ['org', 'read', 'sandbox']) {
      const token = await platform.createToken(kind, 'acme', kind === 'sandbox' ? { sandbox: 'dev' } : {})
      expect((await mint('acme', token)).status).toBe(403)
    }
  })
})
