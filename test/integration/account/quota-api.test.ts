import { beforeEach, describe, expect, test } from 'vitest'
import { prepareFirstUse } from '../../../src/actions/first-use.ts'
import { quotaNames, standardQuotas } from '../../../src/model/account/quota.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { call } = platform

let org = ''
let read = ''

beforeEach(async () => {
  await platform.createOrg('acme')
  await platform.createOrg('other')
  org = await platform.createToken('org', 'acme')
  read = await platform.createToken('read', 'acme')
})

const url = '/v1/orgs/acme/quotas'
const patch = (body: unknown, token = platform.rootToken) => call('PATCH', url, { body, token })

describe('the quotas of an organization', () => {
  test('are shown to it with limit and usage side by side', async () => {
    await platform.createApp('shop', { org_slug: 'acme' })
    for (const token of [platform.rootToken, org, read]) {
      const { status, body } = await call('GET', url, { token })
      expect(status).toBe(200)
      expect(body.organization).toBe('acme')
      expect(body.quotas.map(({ name }: { name: string }) => name)).toEqual(quotaNames)
      expect(body.quotas[0]).toEqual({ name: 'apps', limit: 1000, used: 1, is_default: true, description: 'apps' })
    }
  })

  test('are hidden from other organizations', async () => {
    const stranger = await platform.createToken('org', 'other')
    expect((await call('GET', url, { token: stranger })).status).toBe(404)
    expect((await patch({ apps: 1 }, stranger)).status).toBe(404)
    expect((await call('GET', url, { token: null })).status).toBe(401)
    const { body } = await call('GET', '/v1/quotas', { token: stranger })
    expect(body.organizations.map(({ organization }: { organization: string }) => organization)).toEqual(['other'])
  })

  test('can be changed by a root token only', async () => {
    for (const token of [org, read]) expect((await patch({ apps: 9999 }, token)).status).toBe(403)
    expect(await platform.sql('select * from org_quota')).toEqual([])
    expect((await patch({ apps: 1, clusters: 'unlimited' })).body.quotas).toEqual(
      expect.arrayContaining([
        expect.objectContaining({ name: 'apps', limit: 1, is_default: false }),
        expect.objectContaining({ name: 'clusters', limit: null, is_default: false }),
        expect.objectContaining({ name: 'volumes', limit: 200, is_default: true }),
      ]),
    )
    const reset = await patch({ apps: 'default' })
    expect(reset.body.quotas[0]).toMatchObject({ limit: 1000, is_default: true })
  })

  test.each([
    [{ cluster: 1 }, 'cluster is not a known field'],
    [{ clusters: -1 }, 'clusters must be a whole number from 0 to 1000000000, "unlimited" or "default"'],
    [{ clusters: 'many' }, 'clusters must be a whole number from 0 to 1000000000, "unlimited" or "default"'],
    [{ clusters: 1.5 }, 'clusters must be'],
    [{ clusters: null }, 'clusters must be'],
    [{ slots: 5 }, 'slots is not a known field'],
  ])('%j is rejected', async (body, message) => {
    const refused = await patch(body)
    expect(refused.status).toBe(422)
    expect(refused.body.error).toContain(message)
  })

  test('below the usage remove nothing and prevent more', async () => {
    await platform.createApp('shop', { org_slug: 'acme' })
    await patch({ apps: 0 })
    expect((await call('GET', '/v1/apps/shop', { token: org })).status).toBe(200)
    expect((await platform.createApp('more', { org_slug: 'acme' })).status).toBe(422)
    expect((await call('DELETE', '/v1/apps/shop', { token: org })).status).toBe(202)
  })

  test('apply to a root token too, unless they are unlimited', async () => {
    await patch({ apps: 0 })
    expect((await platform.createApp('shop', { org_slug: 'acme' })).status).toBe(422)
    await patch({ apps: 'unlimited' })
    expect((await platform.createApp('shop', { org_slug: 'acme' })).status).toBe(201)
  })
})

test('the defaults of the operator apply at the next start, but not to an organization with its own', async () => {
  await patch({ apps: 5 })
  await prepareFirstUse(platform.database.db, platform.rootToken, { ...standardQuotas(), apps: 0 })
  expect((await platform.createApp('shop', { org_slug: 'acme' })).status).toBe(201)
  expect((await platform.createApp('other', { org_slug: 'other' })).status).toBe(422)
})

test('metrics have usage and limit of each organization', async () => {
  await platform.createApp('shop', { org_slug: 'acme' })
  await patch({ clusters: 'unlimited' })
  const { body } = await call('GET', '/metrics')
  expect(body).toContain('berth_quota_used{organization="acme",quota="apps"} 1\n')
  expect(body).toContain('berth_quota_limit{organization="acme",quota="apps"} 1000\n')
  expect(body).toContain('berth_quota_used{organization="acme",quota="clusters"} 0\n')
  expect(body).not.toContain('berth_quota_limit{organization="acme",quota="clusters"}')
})

test('GraphQL reports an exceeded quota', async () => {
  await patch({ apps: 0 })
  const query = `mutation($input: CreateAppInput!) { createApp(input: $input) { app { name } } }`
  const input = { organizationId: 'acme', name: 'shop' }
  const { body } = await call('POST', '/graphql', { body: { query, variables: { input } } })
  expect(JSON.stringify(body.errors)).toContain('quota apps exceeded')
})
