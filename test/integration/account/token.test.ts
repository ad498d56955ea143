import { describe, expect, test } from 'vitest'
import { prepareFirstUse } from '../../../src/actions/first-use.ts'
import { platformRoutes } from '../../../src/api/routes.ts'
import { readMacaroon } from '../../../src/model/account/macaroon.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()

describe('a token', () => {
  test('is returned once and stored as a hash', async () => {
    const made = await platform.call('POST', '/v1/tokens', { body: { kind: 'org', org_slug: 'personal', name: 'ci' } })
    expect(made.status).toBe(201)
    expect(made.body).toEqual({
      id: expect.stringMatching(/^[a-z0-9]{16}$/),
      token: expect.stringMatching(/^berth_[A-Za-z0-9]{43}$/),
      kind: 'org',
    })
    const stored = await platform.sql(
      `select string_agg(encode(hash, 'escape') || t::text, '') as everything from token t`,
    )
    expect(stored[0].everything).not.toContain(made.body.token)
    const list = await platform.call('GET', '/v1/tokens?org_slug=personal')
    expect(JSON.stringify(list.body)).not.toContain(made.body.token)
    expect(list.body.tokens).toMatchObject([
      { id: made.body.id, kind: 'org', org_slug: 'personal', name: 'ci', revoked_at: null },
    ])
  })

  test('is invalid from the next request after it is revoked, and revoking is idempotent', async () => {
    const { body } = await platform.call('POST', '/v1/tokens', { body: { kind: 'org', org_slug: 'personal' } })
    expect((await platform.call('GET', '/v1/orgs', { token: body.token })).status).toBe(200)
    expect((await platform.call('DELETE', `/v1/tokens/${body.id}`)).status).toBe(204)
    expect((await platform.call('GET', '/v1/orgs', { token: body.token })).status).toBe(401)
    expect((await platform.call('DELETE', `/v1/tokens/${body.id}`)).status).toBe(204)
  })

  test('returns 401 after it has expired', async () => {
    const token = await platform.createToken('org', 'personal', { expires_in_seconds: 60 })
    expect((await platform.call('GET', '/v1/orgs', { token })).status).toBe(200)
    await platform.sql(`update token set expires_at = now() where expires_at is not null`)
    expect((await platform.call('GET', '/v1/orgs', { token })).status).toBe(401)
    expect((await platform.createApp('x')).status).toBe(201)
    expect((await platform.call('GET', '/v1/apps/x', { token })).status).toBe(401)
  })

  test('can be described by its holder', async () => {
    const token = await platform.createToken('read', 'personal')
    expect((await platform.call('GET', '/v1/tokens/current', { token })).body.tokens).toMatchObject([
      { kind: 'read', org_slug: 'personal', organization: 'personal' },
    ])
    expect((await platform.call('GET', '/v1/tokens/current')).body.tokens).toMatchObject([
      { kind: 'root', org_slug: null },
    ])
  })

  test.each([
    [{ kind: 'org' }, 'org_slug'],
    [{ org_slug: 'personal' }, 'kind'],
    [{ kind: 'admin', org_slug: 'personal' }, 'kind'],
    [{ kind: 'sandbox', org_slug: 'personal' }, 'sandbox'],
    [{ kind: 'org', org_slug: 'personal', sandbox: 'x' }, 'sandbox'],
    [{ kind: 'sandbox', org_slug: 'personal', sandbox: '../x' }, 'sandbox'],
    [{ kind: 'org', org_slug: 'personal', format: 'fm1' }, 'format'],
    [{ kind: 'org', org_slug: 'personal', expires_in_seconds: 0 }, 'expires_in_seconds'],
    [{ kind: 'org', org_slug: 'personal', expires_in_seconds: '5' }, 'expires_in_seconds'],
    [{ kind: 'org', org_slug: 'personal', expires_in_seconds: 1e300 }, 'expires_in_seconds'],
  ])('is rejected for %j', async (body, field) => {
    const reply = await platform.call('POST', '/v1/tokens', { body })
    expect(reply.status).toBe(422)
    expect(reply.body.error).toContain(field)
  })
})

describe('a token in macaroon format', () => {
  const mint = async (extra: object = {}) => {
    const body = { kind: 'org', org_slug: 'personal', format: 'fm2', ...extra }
    const made = await platform.call('POST', '/v1/tokens', { body })
    expect(made.status).toBe(201)
    return made.body as { id: string; token: string }
  }
  const ask = async (authorization: string) =>
    (await platform.call('GET', '/v1/tokens/current', { token: null, headers: { authorization } })).body

  test('has the permissions of its kind with either authorization scheme', async () => {
    const { id, token } = await mint()
    expect(token).toMatch(/^fm2_[A-Za-z0-9+/]+=*$/)
    for (const scheme of ['Bearer', 'FlyV1', 'flyv1', 'Bearer FlyV1']) {
      expect((await ask(`${scheme} ${token}`)).tokens).toMatchObject([{ token_id: id, kind: 'org' }])
    }
    const reader = await mint({ kind: 'read' })
    const body = { app_name: 'new', org_slug: 'personal' }
    expect((await platform.call('POST', '/v1/apps', { token: reader.token, body })).status).toBe(403)
  })

  test('contains its expiry, and expires then', async () => {
    const { token } = await mint({ expires_in_seconds: 60 })
    const end = readMacaroon(token)!.until! - Date.now() / 1000
    expect(end).toBeGreaterThan(0)
    expect(end).toBeLessThanOrEqual(61)
    expect(await ask(`FlyV1 ${token}`)).toHaveProperty('tokens')
    await platform.sql(`update token set expires_at = now() where expires_at is not null`)
    expect(await ask(`FlyV1 ${token}`)).toEqual({ error: 'invalid token' })
  })

  test('is found among tokens of other platforms in one header', async () => {
    const [first, second] = [await mint(), await mint()]
    const foreign = 'fm2_lJPETO0='
    expect((await ask(`FlyV1 ${foreign},${first.token}`)).tokens).toMatchObject([{ token_id: first.id }])
    expect((await ask(`Bearer ${foreign}, ${first.token}, fo1_x`)).tokens).toMatchObject([{ token_id: first.id }])
    expect((await ask(`Bearer fo1_x,${platform.rootToken}`)).tokens).toMatchObject([{ kind: 'root' }])
    expect((await ask(`FlyV1 ${second.token},${first.token}`)).tokens).toMatchObject([{ token_id: second.id }])
    for (const header of [`FlyV1 ${foreign}`, `FlyV1 ${foreign},${foreign}`, 'FlyV1 ,', 'FlyV1 fm2_,fm2_']) {
      expect(await ask(header), header).toEqual({ error: 'invalid token' })
    }
  })

  test('is invalid when it was revoked or modified', async () => {
    const { id, token } = await mint()
    const bytes = Buffer.from(token.slice(4), 'base64')
    bytes[bytes.length - 1]! ^= 1
    expect(await ask(`FlyV1 fm2_${bytes.toString('base64')}`)).toEqual({ error: 'invalid token' })
    expect((await platform.call('DELETE', `/v1/tokens/${id}`)).status).toBe(204)
    expect(await ask(`FlyV1 ${token}`)).toEqual({ error: 'invalid token' })
  })
})

describe('token kinds', () => {
  test('a read token reads and changes nothing', async () => {
    await platform.createApp('seen')
    const token = await platform.createToken('read', 'personal')
    expect((await platform.call('GET', '/v1/apps/seen', { token })).status).toBe(200)
    expect((await platform.call('GET', '/v1/apps?org_slug=personal', { token })).status).toBe(200)
    for (const reply of [
      await platform.call('POST', '/v1/apps', { token, body: { app_name: 'new', org_slug: 'personal' } }),
      await platform.call('DELETE', '/v1/apps/seen', { token }),
      await platform.call('POST', '/v1/tokens', { token, body: { kind: 'read', org_slug: 'personal' } }),
      await platform.call('POST', '/v1/orgs', { token, body: { slug: 'acme' } }),
      await platform.call('DELETE', '/v1/tokens/root', { token }),
    ]) {
      expect(reply.status).toBe(403)
    }
    expect((await platform.call('GET', '/v1/apps?org_slug=personal')).body.total_apps).toBe(1)
  })

  test('a sandbox token is not valid for the platform API', async () => {
    const token = await platform.createToken('sandbox', 'personal', { sandbox: 'dev' })
    for (const { method, path } of platformRoutes) {
      const url = path.replaceAll(/\{\w+\}/g, 'x')
      const body = { app_name: 'x', org_slug: 'personal', slug: 'x', kind: 'read' }
      const reply = await platform.call(method, `${url}${method === 'GET' ? '?org_slug=personal' : ''}`, {
        token,
        ...(method === 'POST' ? { body } : {}),
      })
      expect(reply.status, `${method} ${path}`).toBe(401)
    }
    expect(await platform.sql('select 1 from app')).toEqual([])
  })

  test('an organization token creates only tokens with fewer permissions in its organization', async () => {
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    const ask = (body: object) => platform.call('POST', '/v1/tokens', { token, body })
    expect((await ask({ kind: 'read', org_slug: 'acme' })).status).toBe(201)
    expect((await ask({ kind: 'org', org_slug: 'acme' })).status).toBe(403)
    expect((await ask({ kind: 'root' })).status).toBe(403)
    expect((await ask({ kind: 'read', org_slug: 'personal' })).status).toBe(404)
  })

  test('an organization token sees and revokes the tokens of its organization only', async () => {
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    const other = await platform.call('POST', '/v1/tokens', { body: { kind: 'read', org_slug: 'personal' } })
    const seen = await platform.call('GET', '/v1/tokens', { token })
    expect(seen.body.tokens.map((item: { org_slug: string }) => item.org_slug)).toEqual(['acme'])
    expect((await platform.call('DELETE', `/v1/tokens/${other.body.id}`, { token })).status).toBe(404)
    expect((await platform.call('DELETE', '/v1/tokens/root', { token })).status).toBe(404)
    expect((await platform.call('GET', '/v1/orgs', { token: other.body.token })).status).toBe(200)
  })
})

describe('organizations', () => {
  test('are listed if the token may see them', async () => {
    await platform.createOrg('acme')
    const slugs = async (token?: string) =>
      (await platform.call('GET', '/v1/orgs', token ? { token } : {})).body.organizations.map(
        (org: { slug: string }) => org.slug,
      )
    expect(await slugs()).toEqual(['acme', 'personal'])
    expect(await slugs(await platform.createToken('read', 'acme'))).toEqual(['acme'])
  })

  test.each(['', 'A', '-a', 'a_b', 'x'.repeat(64), 'a\u0000'])('reject the slug %j', async (slug) => {
    expect(await platform.call('POST', '/v1/orgs', { body: { slug } })).toMatchObject({
      status: 422,
      body: { error: expect.stringContaining('slug') },
    })
  })

  test('are shown and changed only with a permitted token', async () => {
    await platform.createOrg('acme')
    const path = '/v1/orgs/acme'
    const [owner, reader] = [await platform.createToken('org', 'acme'), await platform.createToken('read', 'acme')]
    const stranger = await platform.createToken('org', 'personal')
    const seen = async (token: string) => (await platform.call('GET', path, { token })).body.cross_network_replays
    expect(await seen(reader)).toBe(true)
    const body = { cross_network_replays: false }
    const changed = await platform.call('PATCH', path, { token: owner, body })
    expect(changed).toMatchObject({ status: 200, body: { slug: 'acme', cross_network_replays: false } })
    expect(await seen(reader)).toBe(false)
    for (const [token, status] of [
      [reader, 403],
      [stranger, 404],
    ] as const) {
      expect((await platform.call('PATCH', path, { token, body })).status).toBe(status)
    }
    expect((await platform.call('GET', path, { token: stranger })).status).toBe(404)
    for (const wrong of [{}, { cross_network_replays: 'on' }]) {
      expect((await platform.call('PATCH', path, { body: wrong })).status).toBe(400)
    }
  })

  test('have unique slugs', async () => {
    expect(await platform.call('POST', '/v1/orgs', { body: { slug: 'personal' } })).toMatchObject({
      status: 422,
      body: { status: 'name_taken' },
    })
    expect((await platform.call('POST', '/v1/orgs', { body: { slug: 'nul', name: 'a\u0000b' } })).status).toBe(400)
  })
})

describe('the root token of the configuration', () => {
  test('cannot be revoked, and is invisible to organizations', async () => {
    expect(await platform.call('DELETE', '/v1/tokens/root')).toMatchObject({
      status: 409,
      body: {
        error:
          'the root token of the configuration cannot be revoked; replace it with POST /v1/tokens/root/rotate or "berth tokens rotate-root"',
      },
    })
    const second = await platform.call('POST', '/v1/tokens', { body: { kind: 'root' } })
    expect((await platform.call('DELETE', '/v1/tokens/root', { token: second.body.token })).status).toBe(409)
    const org = await platform.createToken('org', 'personal')
    expect(await platform.call('DELETE', '/v1/tokens/root', { token: org })).toMatchObject({
      status: 404,
      body: { error: 'token not found' },
    })
    expect((await platform.call('GET', '/v1/orgs')).status).toBe(200)
    // Other root tokens can be revoked, also by themselves.
    const own = { token: second.body.token }
    expect((await platform.call('DELETE', `/v1/tokens/${second.body.id}`, own)).status).toBe(204)
    expect((await platform.call('GET', '/v1/orgs', own)).status).toBe(401)
  })

  test('is replaced in the file and in the database', async () => {
    const made = await platform.call('POST', '/v1/tokens/root/rotate')
    expect(made).toMatchObject({ status: 201, body: { id: 'root', kind: 'root' } })
    const { token } = made.body
    expect(platform.fake.rootTokens).toEqual([token])
    expect((await platform.call('GET', '/v1/orgs')).status).toBe(401)
    expect((await platform.call('GET', '/v1/orgs', { token })).status).toBe(200)
    // The next start stores the token of the file, and does not bring the old one back.
    await prepareFirstUse(platform.database.db, token)
    expect((await platform.call('GET', '/v1/orgs')).status).toBe(401)
    expect((await platform.call('GET', '/v1/orgs', { token })).status).toBe(200)
  })

  test('is replaced by root tokens only', async () => {
    for (const kind of ['org', 'read']) {
      const token = await platform.createToken(kind, 'personal')
      expect((await platform.call('POST', '/v1/tokens/root/rotate', { token })).status).toBe(403)
    }
    const sandbox = await platform.createToken('sandbox', 'personal', { sandbox: 'x' })
    expect((await platform.call('POST', '/v1/tokens/root/rotate', { token: sandbox })).status).toBe(401)
    expect(platform.fake.rootTokens).toEqual([])
  })

  test('keeps working when the new one cannot be written', async () => {
    platform.fake.rootTokens = Object.assign([], {
      push: () => {
        throw new Error('the disk is full')
      },
    })
    expect((await platform.call('POST', '/v1/tokens/root/rotate')).status).toBe(500)
    expect((await platform.call('GET', '/v1/orgs')).status).toBe(200)
  })

  test('is never a token that was created over the API, valid or revoked', async () => {
    const made = await platform.call('POST', '/v1/tokens', { body: { kind: 'org', org_slug: 'personal' } })
    const start = () => prepareFirstUse(platform.database.db, made.body.token)
    await expect(start()).rejects.toThrow(`already in use as token ${made.body.id}`)
    await platform.call('DELETE', `/v1/tokens/${made.body.id}`)
    await expect(start()).rejects.toThrow(`already in use as token ${made.body.id}`)
    expect((await platform.call('GET', '/v1/orgs', { token: made.body.token })).status).toBe(401)
    expect((await platform.call('GET', '/v1/orgs')).status).toBe(200)
  })
})
