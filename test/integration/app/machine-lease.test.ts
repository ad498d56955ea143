import { beforeEach, describe, expect, test } from 'vitest'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const machines = machinesOf(platform, 'shop')
const { create, started } = machines

beforeEach(async () => {
  await platform.createApp('shop')
})

describe('leases', () => {
  const lease = (id: string, body: object = {}, nonce?: string, query = '') =>
    machines.call('POST', id, `/lease${query}`, {
      body,
      ...(nonce && { headers: { 'fly-machine-lease-nonce': nonce } }),
    })

  test('keep others from changing the machine', async () => {
    const id = await started()
    expect(await machines.call('GET', id, '/lease')).toMatchObject({ status: 404 })
    const held = await lease(id, { ttl: 60, description: 'deploy' })
    expect(held).toMatchObject({
      status: 201,
      body: {
        status: 'success',
        data: {
          nonce: expect.any(String),
          expires_at: expect.any(Number),
          owner: 'root',
          description: 'deploy',
          version: expect.any(String),
        },
      },
    })
    const { nonce, expires_at } = held.body.data
    expect(expires_at - Date.now() / 1000).toBeGreaterThan(50)
    expect((await machines.call('GET', id, '/lease')).body).toEqual(held.body)
    const headers = { 'fly-machine-lease-nonce': nonce }
    const message = expect.stringMatching(new RegExp(`^machine ID ${id} lease currently held by root, expires at `))
    const config = { image: 'nginx' }
    for (const [rest, body] of [
      ['', { config }],
      ['/start'],
      ['/stop'],
      ['/restart'],
      ['/suspend'],
      ['/cordon'],
      ['/uncordon'],
      ['/lease'],
    ] as const) {
      expect(await machines.call('POST', id, rest, { ...(body && { body }) })).toMatchObject({
        status: 409,
        body: { status: 'error', message, code: 'invalid' },
      })
    }
    expect((await machines.call('DELETE', id, '?force=true')).status).toBe(409)
    expect((await lease(id, {}, 'wrong')).status).toBe(409)
    expect((await lease(id, {}, nonce, '?ttl=100')).body.data).toMatchObject({ nonce, description: 'deploy' })
    expect((await machines.call('GET', id, '?include_leases=true')).body.lease).toMatchObject({
      owner: 'root',
      description: 'deploy',
    })
    expect((await machines.call('GET', id)).body.nonce).toBeUndefined()
    expect((await machines.call('POST', id, '/cordon', { headers })).status).toBe(200)
    expect((await machines.call('DELETE', id, '/lease')).status).toBe(400)
    expect((await machines.call('DELETE', id, '/lease', { headers: { 'fly-machine-lease-nonce': 'x' } })).status).toBe(
      400,
    )
    expect((await machines.call('DELETE', id, '/lease', { headers })).body).toEqual({ ok: true })
    expect((await machines.call('POST', id, '/uncordon')).status).toBe(200)
  })

  test('expire, can be acquired at creation, and have limits', async () => {
    const made = await create({ lease_ttl: 60, skip_launch: true })
    expect(made.body.nonce).toEqual(expect.any(String))
    expect((await machines.call('POST', made.body.id, '/start')).status).toBe(409)
    await platform.sql(`update machine set lease_until = now() - interval '1 second'`)
    expect((await machines.call('POST', made.body.id, '/start')).status).toBe(200)
    for (const ttl of [-1, 100_000]) expect((await lease(made.body.id, { ttl })).status).toBe(400)
  })

  test('of a hundred concurrent requests one is granted', async () => {
    const { body } = await create({ skip_launch: true })
    const replies = await Promise.all(Array.from({ length: 100 }, () => lease(body.id)))
    expect(replies.filter(({ status }) => status === 201)).toHaveLength(1)
  })
})
