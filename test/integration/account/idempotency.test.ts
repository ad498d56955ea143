import { describe, expect, test } from 'vitest'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()

function create(key: string, body: object, extra: { token?: string; url?: string } = {}) {
  return platform.call('POST', extra.url ?? '/v1/apps', {
    body,
    headers: { 'idempotency-key': key },
    ...(extra.token ? { token: extra.token } : {}),
  })
}

const shop = { app_name: 'shop', org_slug: 'personal' }

describe('a POST with an Idempotency-Key', () => {
  test('returns the first response when repeated, and changes nothing', async () => {
    const first = await create('k1', shop)
    const again = await create('k1', shop)
    expect(first.status).toBe(201)
    expect(again).toMatchObject({ status: 201, body: first.body })
    expect(again.headers['fly-request-id']).not.toBe(first.headers['fly-request-id'])
    expect(await platform.sql('select count(*) from app')).toEqual([{ count: 1 }])
  })

  test('is recognized when the keys of its body and its query come in another order', async () => {
    const body = { ...shop, extra: { a: 1, b: [{ c: 1, d: 2 }] } }
    const first = await create('k1', body, { url: '/v1/apps?one=1&two=2' })
    const turned = { extra: { b: [{ d: 2, c: 1 }], a: 1 }, org_slug: 'personal', app_name: 'shop' }
    expect(await create('k1', turned, { url: '/v1/apps?two=2&one=1' })).toMatchObject({ status: 201, body: first.body })
    const other = { ...turned, extra: { b: [{ d: 2 }, { c: 1 }], a: 1 } }
    expect((await create('k1', other, { url: '/v1/apps?two=2&one=1' })).status).toBe(422)
  })

  test('is rejected when repeated with another body or query', async () => {
    await create('k1', shop)
    expect(await create('k1', { ...shop, app_name: 'other' })).toMatchObject({
      status: 422,
      body: { error: expect.stringContaining('Idempotency-Key') },
    })
    expect((await create('k1', shop, { url: '/v1/apps?wait=true' })).status).toBe(422)
    expect(await platform.sql('select count(*) from app')).toEqual([{ count: 1 }])
  })

  test('returns the first error when repeated, even if the request would succeed by now', async () => {
    await platform.createApp('shop')
    const refused = await create('k1', shop)
    expect(refused).toMatchObject({ status: 422, body: { status: 'name_taken' } })
    await platform.call('DELETE', '/v1/apps/shop')
    expect(await create('k1', shop)).toMatchObject({ status: 422, body: refused.body })
    expect((await create('k2', shop)).status).toBe(201)
  })

  test('belongs to one token and one path', async () => {
    const token = await platform.createToken('org', 'personal')
    await create('k1', shop)
    expect((await create('k1', shop, { token })).status).toBe(422)
    expect((await create('k1', { slug: 'acme' }, { url: '/v1/orgs' })).status).toBe(201)
  })

  test('creates one resource for fifty concurrent requests', async () => {
    const replies = await Promise.all(Array.from({ length: 50 }, () => create('k1', shop)))
    const statuses = new Set(replies.map((reply) => reply.status))
    expect(statuses.has(201)).toBe(true)
    expect([...statuses].every((status) => status === 201 || status === 409)).toBe(true)
    expect(new Set(replies.filter((reply) => reply.status === 201).map((reply) => reply.body.id)).size).toBe(1)
    expect(await platform.sql('select count(*) from app')).toEqual([{ count: 1 }])
  })

  test('returns the stored response to fifty concurrent requests', async () => {
    const first = await create('k1', shop)
    const replies = await Promise.all(Array.from({ length: 50 }, () => create('k1', shop)))
    for (const reply of replies) expect(reply).toMatchObject({ status: 201, body: first.body })
  })

  test('stores the response encrypted, for a day', async () => {
    const made = await create('k1', { kind: 'org', org_slug: 'personal' }, { url: '/v1/tokens' })
    const [row] = await platform.sql('select answer from idempotency')
    expect(row.answer.includes(Buffer.from(made.body.token))).toBe(false)
    expect((await create('k1', { kind: 'org', org_slug: 'personal' }, { url: '/v1/tokens' })).body).toEqual(made.body)
    await platform.sql(`update idempotency set created_at = now() - interval '25 hours'`)
    expect((await create('k1', { kind: 'org', org_slug: 'personal' }, { url: '/v1/tokens' })).body.id).not.toBe(
      made.body.id,
    )
    await platform.sql(`update idempotency set created_at = now() - interval '25 hours'`)
    await create('k2', shop)
    expect(await platform.sql('select key from idempotency')).toEqual([{ key: 'k2' }])
  })

  test('does not store a 5xx response', async () => {
    await platform.sql('alter table app rename to app_away')
    expect((await create('k1', shop)).status).toBe(500)
    await platform.sql('alter table app_away rename to app')
    expect((await create('k1', shop)).status).toBe(201)
  })

  test.each(['', ' ', 'a b', 'x'.repeat(256), 'é'])('%j is rejected', async (key) => {
    expect((await create(key, shop)).status).toBe(400)
    expect(await platform.sql('select 1 from app')).toEqual([])
  })

  test('requires a valid token', async () => {
    expect((await create('k1', shop, { token: 'berth_wrong' })).status).toBe(401)
  })
})
