import { beforeEach, describe, expect, test } from 'vitest'
import { untilOneWaits } from '../../support/db.ts'
import type { Method } from '../../support/platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
let token: string

async function deployToken(app = 'shop', body: object = {}, asker?: string): Promise<string> {
  const options = asker === undefined ? { body } : { body, token: asker }
  const made = await platform.call('POST', `/v1/apps/${app}/deploy_token`, options)
  expect(made.status).toBe(200)
  return made.body.token
}

beforeEach(async () => {
  for (const name of ['shop', 'other']) await platform.createApp(name)
  token = await deployToken()
})

const call = (method: Method, url: string, body?: object) =>
  platform.call(method, url, { token, ...(body ? { body } : {}) })

test('no token is created for an app that is deleted at the same moment', async () => {
  const asked: ReturnType<typeof platform.call>[] = []
  await platform.database.db.transaction(async (tx) => {
    await tx.query(`update app set state = 'deleting' where name = 'shop'`)
    asked.push(platform.call('POST', '/v1/apps/shop/deploy_token', { body: {} }))
    await untilOneWaits(platform)
  })
  expect((await asked[0])?.status).toBe(404)
  expect(await platform.sql(`select 1 from token where kind = 'app'`)).toHaveLength(1)
})

describe('a token of one app', () => {
  test('has the permissions of an organization token for its app', async () => {
    expect((await call('GET', '/v1/apps/shop')).status).toBe(200)
    expect((await call('POST', '/v1/apps/shop/secrets', { values: { A: 'x' } })).status).toBe(200)
    expect((await call('GET', '/v1/apps/shop/secrets?show_secrets=1')).body.secrets[0].value).toBe('x')
    expect((await call('POST', '/v1/apps/shop/volumes', { name: 'data' })).status).toBe(200)
    expect((await call('POST', '/v1/apps/shop/ip_assignments', { type: 'v4' })).status).toBe(200)
    expect((await call('GET', '/v1/apps/shop/machines')).status).toBe(200)
    expect((await call('GET', '/v1/apps/shop/machines/148e123456789a')).status).toBe(404)
    expect((await call('POST', '/v1/apps/shop/volumes', { name: '-' })).status).toBe(422)
    expect((await call('POST', '/v1/apps/shop/secrets', { values: 1 })).status).toBe(400)
    const key = { 'idempotency-key': 'once' }
    const body = { type: 'v4' }
    expect((await platform.call('POST', '/v1/apps/shop/ip_assignments', { token, body, headers: key })).status).toBe(
      200,
    )
    expect((await call('GET', '/v1/tokens/current')).body.tokens).toMatchObject([
      { kind: 'app', org_slug: 'personal', apps: ['shop'] },
    ])
  })

  test.each([
    ['GET', '/v1/apps/other', undefined, 403],
    ['DELETE', '/v1/apps/other', undefined, 403],
    ['GET', '/v1/apps/other/secrets', undefined, 403],
    ['POST', '/v1/apps/other/volumes', { name: 'data' }, 403],
    ['GET', '/v1/apps/other/machines', undefined, 403],
    ['GET', '/v1/apps/other/machines/148e123456789a', undefined, 403],
    ['POST', '/v1/apps/other/machines', { config: { image: 'x' } }, 403],
    ['GET', '/v1/apps/free', undefined, 404],
    ['GET', '/v1/apps?org_slug=personal', undefined, 401],
    ['POST', '/v1/apps', { app_name: 'mine', org_slug: 'personal' }, 401],
    ['POST', '/v1/apps/shop/deploy_token', {}, 401],
    ['POST', '/v1/apps/shop/ip_assignments', { type: 'private_v6', org_slug: 'acme' }, 401],
    ['POST', '/v1/tokens', { kind: 'read', org_slug: 'personal' }, 401],
    ['GET', '/v1/tokens', undefined, 401],
    ['GET', '/v1/orgs', undefined, 401],
    ['GET', '/v1/orgs/personal/volumes', undefined, 401],
    ['GET', '/v1/orgs/personal/machines', undefined, 401],
    ['GET', '/v1/postgres?org_slug=personal', undefined, 401],
    ['POST', '/v1/postgres', { org_slug: 'personal', plan: 'basic' }, 401],
    ['GET', '/v1/postgres/0123456789abcdef', undefined, 401],
  ] as [Method, string, object | undefined, number][])('%s %s is refused', async (method, url, body, status) => {
    expect((await call(method, url, body)).status).toBe(status)
    expect(await platform.sql('select count(*) from app')).toEqual([{ count: 2 }])
  })

  test('is not valid for the sandbox API', async () => {
    const asker = await platform.createToken('org', 'personal')
    await platform.callSandbox('POST', '/v1/sandboxes', { token: asker, body: { name: 'box' } })
    for (const url of ['/v1/sandboxes', '/v1/sandboxes/box', '/v1/sandboxes/box/services']) {
      expect((await platform.callSandbox('GET', url, { token })).status).toBe(401)
    }
    expect((await platform.callSandbox('POST', '/v1/sandboxes', { token, body: { name: 'mine' } })).status).toBe(401)
    expect(await platform.sql('select name from sandbox')).toEqual([{ name: 'box' }])
  })

  test('becomes invalid with the app, also when another app takes the name', async () => {
    expect((await call('DELETE', '/v1/apps/shop')).status).toBe(202)
    await platform.createApp('shop')
    expect((await call('GET', '/v1/apps/shop')).status).toBe(401)
    const { body } = await platform.call('GET', '/v1/tokens')
    expect(body.tokens.find((one: { kind: string }) => one.kind === 'app').revoked_at).not.toBe(null)
  })

  test('becomes invalid when it expires or is revoked', async () => {
    token = await deployToken('shop', { expiry: '1h30m' })
    expect((await call('GET', '/v1/apps/shop')).status).toBe(200)
    const [row] = await platform.sql(
      `select extract(epoch from expires_at - created_at)::int as seconds from token where expires_at is not null
       order by expires_at`,
    )
    expect(row).toEqual({ seconds: 5400 })
    await platform.sql(`update token set expires_at = now() where expires_at is not null`)
    expect((await call('GET', '/v1/apps/shop')).status).toBe(401)
    token = await deployToken()
    for (const { id } of await platform.sql(`select id from token where kind = 'app'`)) {
      expect((await platform.call('DELETE', `/v1/tokens/${id}`)).status).toBe(204)
    }
    expect((await call('GET', '/v1/apps/shop')).status).toBe(401)
  })

  test('can be created only with write access to the app', async () => {
    await platform.createOrg('acme')
    const make = (asker: string | null, body: object = {}, app = 'shop') =>
      platform.call('POST', `/v1/apps/${app}/deploy_token`, { token: asker, body })
    expect((await make(null)).status).toBe(401)
    expect((await make(await platform.createToken('org', 'acme'))).status).toBe(403)
    expect((await make(await platform.createToken('read', 'personal'))).status).toBe(403)
    expect((await make(platform.rootToken, {}, 'free')).status).toBe(404)
    for (const expiry of ['soon', '-1h', '0s', '9999999h', 7]) {
      const refused = await make(platform.rootToken, { expiry })
      expect(refused.status).toBe(400)
      expect(refused.body.error).toContain('expiry')
    }
    await deployToken('shop', { expiry: '' }, await platform.createToken('org', 'personal'))
  })
})
