import { beforeEach, describe, expect, test } from 'vitest'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const machines = machinesOf(platform, 'shop')
/** Services that check the tokens of others send no token themselves. */
const check = (what: 'authenticate' | 'authorize', body: object) =>
  platform.call('POST', `/v1/tokens/${what}`, { body, token: null })
const all = 'rwcdC'

beforeEach(async () => {
  await platform.createOrg('acme')
  await platform.createApp('shop')
})

describe('checking whether tokens are valid', () => {
  test('returns the tokens in the body with their caveats', async () => {
    const made = await platform.call('POST', '/v1/tokens', {
      body: { kind: 'read', org_slug: 'personal', format: 'fm2', expires_in_seconds: 60 },
    })
    const { token } = made.body
    const { internal_numeric_id: id } = (await platform.call('GET', '/v1/apps/shop')).body.organization
    const reply = await check('authenticate', { header: `FlyV1 ${token},berth_unknown,fm2_lJPETO0=` })
    expect(reply.status).toBe(200)
    expect(reply.body).toEqual([
      {
        header: `FlyV1 ${token}`,
        permission_token: token.slice(4),
        caveats: [
          { type: 'Organization', body: { id, mask: 'r' } },
          { type: 'ValidityWindow', body: { not_before: expect.any(Number), not_after: expect.any(Number) } },
        ],
        token_id: made.body.id,
        kind: 'read',
        org_slug: 'personal',
        app_name: null,
      },
    ])
    const { not_before, not_after } = reply.body[0].caveats[1].body
    expect(not_after - not_before).toBe(60)
  })

  test('accepts every kind of token that is valid for the platform API', async () => {
    const org = await platform.createToken('org', 'acme')
    const app = (await platform.call('POST', '/v1/apps/shop/deploy_token', { body: {} })).body.token
    const sandbox = await platform.createToken('sandbox', 'acme', { sandbox: 'dev' })
    const { body } = await check('authenticate', { header: `Bearer ${org},${app},${platform.rootToken},${sandbox}` })
    expect(body).toMatchObject([
      { kind: 'org', org_slug: 'acme', header: `Bearer ${org}`, caveats: [{ type: 'Organization' }] },
      {
        kind: 'app',
        app_name: 'shop',
        caveats: [{ type: 'Organization' }, { type: 'Apps' }, { type: 'ValidityWindow' }],
      },
      { kind: 'root', org_slug: null, caveats: [] },
    ])
    const { internal_numeric_id: number } = (await platform.call('GET', '/v1/apps/shop')).body
    expect(body[1].caveats[1].body).toEqual({ apps: { [number]: all } })
    expect(Buffer.from(body[0].permission_token, 'base64').toString()).toBe(org)
    expect((await check('authenticate', { header: `Bearer ${sandbox}` })).status).toBe(401)
  })

  test('checks the header of the request when the body has none', async () => {
    expect((await platform.call('POST', '/v1/tokens/authenticate')).body).toMatchObject([{ kind: 'root' }])
    expect((await check('authenticate', {})).status).toBe(401)
  })

  test('rejects a revoked or expired token', async () => {
    const { id, token } = (await platform.call('POST', '/v1/tokens', { body: { kind: 'org', org_slug: 'acme' } })).body
    const late = await platform.createToken('org', 'acme', { expires_in_seconds: 60 })
    await platform.call('DELETE', `/v1/tokens/${id}`)
    await platform.sql('update token set expires_at = now() where expires_at is not null')
    for (const header of [`Bearer ${token}`, `Bearer ${late}`, `Bearer ${token},${late}`])
      expect(await check('authenticate', { header })).toMatchObject({ status: 401, body: { error: 'invalid token' } })
  })

  test.each([
    [{ header: 'berth_x' }, 401],
    [{ header: '' }, 401],
    [{ header: 'Bearer ' }, 401],
    [{ header: `Bearer ${'x,'.repeat(32)}x` }, 400],
    [{ header: 5 }, 401],
  ])('rejects %j', async (body, status) => {
    expect((await check('authenticate', body)).status).toBe(status)
  })
})

describe('checking whether tokens permit an action', () => {
  const ask = async (token: string, access: object) =>
    (await check('authorize', { header: `Bearer ${token}`, access })).status

  test('returns the resources of the request', async () => {
    const id = await machines.started()
    const token = await platform.createToken('org', 'personal')
    const { internal_numeric_id: appid, organization } = (await platform.call('GET', '/v1/apps/shop')).body
    const access = { machine_id: id, action: 'Cr', command: ['ls'], source_machine: 'x', org_slug: null }
    const reply = await check('authorize', { header: `FlyV1 ${token}`, access })
    expect(reply.status).toBe(200)
    expect(reply.body.access).toEqual({
      action: 'rC',
      orgid: organization.internal_numeric_id,
      appid,
      machine: id,
      command: ['ls'],
      sourceMachine: 'x',
    })
    expect(reply.body.verified_token).toMatchObject({ kind: 'org', org_slug: 'personal', header: `Bearer ${token}` })
  })

  test('gives the result that a request with the token would have', async () => {
    const id = await machines.started()
    const volume = (await platform.call('POST', '/v1/apps/shop/volumes', { body: { name: 'data' } })).body.id
    const reader = await platform.createToken('read', 'personal')
    const owner = await platform.createToken('org', 'personal')
    const stranger = await platform.createToken('org', 'acme')
    const deploys = (await platform.call('POST', '/v1/apps/shop/deploy_token', { body: {} })).body.token
    await platform.createApp('other')
    for (const access of [
      { app_name: 'shop' },
      { machine_id: id },
      { volume_id: volume },
      { app_name: 'shop', machine_id: id },
    ]) {
      expect(await ask(reader, access)).toBe(200)
      expect(await ask(reader, { ...access, action: 'r' })).toBe(200)
      expect(await ask(reader, { ...access, action: 'rw' })).toBe(403)
      expect(await ask(owner, { ...access, action: '*' })).toBe(200)
      expect(await ask(platform.rootToken, { ...access, action: 31 })).toBe(200)
      expect(await ask(deploys, { ...access, action: 'w' })).toBe(200)
      // App names are one namespace, so only those of other organizations are told apart from what does not exist.
      expect(await ask(stranger, access)).toBe('app_name' in access ? 403 : 404)
    }
    expect(await ask(deploys, { app_name: 'other' })).toBe(403)
    expect(await ask(deploys, { org_slug: 'personal' })).toBe(401)
    expect(await ask(reader, { org_slug: 'personal' })).toBe(200)
    expect(await ask(reader, { org_slug: 'personal', action: 'c' })).toBe(403)
    expect(await ask(owner, { org_slug: 'acme' })).toBe(404)
    expect(await ask(platform.rootToken, { org_slug: 'acme', app_name: 'shop' })).toBe(400)
    expect(await ask('berth_unknown', { app_name: 'shop' })).toBe(401)
    for (const absent of [
      { app_name: 'free' },
      { app_name: 'a\u0000' },
      { machine_id: '148e123456789a' },
      { machine_id: 'a\u0000' },
      { volume_id: 'vol_aaaaaaaaaaaaaaaa' },
      { app_name: 'other', machine_id: id },
      { app_name: 'other', volume_id: volume },
    ])
      expect(await ask(owner, absent), JSON.stringify(absent)).toBe(404)
  })

  test('uses the first token that permits the action', async () => {
    const [stranger, reader] = [
      await platform.createToken('org', 'acme'),
      await platform.createToken('read', 'personal'),
    ]
    const both = (action: string) =>
      check('authorize', { header: `Bearer ${stranger},${reader}`, access: { app_name: 'shop', action } })
    expect((await both('r')).body.verified_token.kind).toBe('read')
    expect(await both('w')).toMatchObject({ status: 403, body: { error: 'unauthorized' } })
  })

  test.each([
    [{}, 'must name'],
    [{ app_name: 'shop', action: 'x' }, 'action must be'],
    [{ app_name: 'shop', action: 32 }, 'action must be'],
    [{ app_name: 5 }, 'app_name'],
    [{ app_name: 'shop', command: ['ls'] }, 'requires'],
  ])('rejects %j', async (access, sentence) => {
    const refused = await platform.call('POST', '/v1/tokens/authorize', { body: { access } })
    expect(refused).toMatchObject({ status: 400, body: { error: expect.stringContaining(sentence) } })
  })
})
