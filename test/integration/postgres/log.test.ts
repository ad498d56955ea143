import { describe, expect, test } from 'vitest'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()

async function createCluster(org = 'personal'): Promise<string> {
  const made = await platform.call('POST', '/v1/postgres', { body: { org_slug: org, plan: 'basic' } })
  expect(made.status).toBe(201)
  return made.body.data.id
}

describe('the log of a cluster', () => {
  test('returns the last lines, oldest first, even before the cluster is ready', async () => {
    const id = await createCluster()
    const read = (query = '') => platform.call('GET', `/v1/postgres/${id}/logs${query}`)
    expect(await read()).toMatchObject({ status: 200, body: { data: { lines: [] } } })
    const lines = Array.from({ length: 150 }, (_, index) => `line ${index}`)
    platform.fake.logs.set(id, lines)
    expect((await read()).body).toEqual({ data: { lines: lines.slice(-100) } })
    expect((await read('?lines=2')).body).toEqual({ data: { lines: ['line 148', 'line 149'] } })
    expect((await read('?lines=1000')).body.data.lines).toHaveLength(150)
  })

  test.each(['0', '1001', '-1', 'many', '1.5'])('answers 400 for %s lines', async (lines) => {
    const reply = await platform.call('GET', `/v1/postgres/${await createCluster()}/logs?lines=${lines}`)
    expect(reply).toMatchObject({ status: 422, body: { error: expect.stringContaining('lines must be') } })
  })

  test('is visible only to tokens that can see the cluster', async () => {
    await platform.createOrg('acme')
    const id = await createCluster('acme')
    const read = (token: string | null) => platform.call('GET', `/v1/postgres/${id}/logs`, { token })
    expect((await read(await platform.createToken('read', 'acme'))).status).toBe(200)
    const stranger = await platform.createToken('org', 'personal')
    expect(await read(stranger)).toMatchObject({ status: 404, body: { error: 'Cluster not found' } })
    expect((await read(null)).status).toBe(401)
    expect((await read('berth_unknown')).status).toBe(401)
  })

  test('is deleted with the cluster', async () => {
    const id = await createCluster()
    const isGone = async () => (await platform.call('GET', `/v1/postgres/${id}/logs`)).status === 404
    await platform.call('DELETE', `/v1/postgres/${id}`)
    expect(await isGone()).toBe(false)
    await until(async () => (await platform.turn()) === undefined || isGone())
    expect(await isGone()).toBe(true)
  })
})

describe('the certificate authority', () => {
  const read = (token?: string | null) => platform.call('GET', '/v1/postgres/ca', token === undefined ? {} : { token })

  test('is shown to every valid token', async () => {
    for (const token of [platform.rootToken, await platform.createToken('read', 'personal')]) {
      expect(await read(token)).toMatchObject({
        status: 200,
        body: { data: { certificate: expect.stringContaining('BEGIN CERTIFICATE') } },
      })
    }
  })

  test('is not shown without a valid token', async () => {
    expect((await read(null)).status).toBe(401)
    expect((await read('berth_unknown')).status).toBe(401)
  })

  test('cannot be changed', async () => {
    expect((await platform.call('DELETE', '/v1/postgres/ca')).status).toBe(405)
  })
})
