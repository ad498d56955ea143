import { beforeEach, describe, expect, test } from 'vitest'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { call } = platform
const machines = machinesOf(platform, 'shop')
const { create, started, path } = machines

beforeEach(async () => {
  await platform.createApp('shop')
})

describe('metadata', () => {
  test('is read and changed as a whole and by key, without a new version', async () => {
    const { body } = await create({ skip_launch: true }, { metadata: { a: '1', b: '2' } })
    const metadata = async () => (await machines.call('GET', body.id, '/metadata')).body
    expect(await metadata()).toEqual({ a: '1', b: '2' })
    expect(
      (await machines.call('PATCH', body.id, '/metadata', { body: { metadata: { a: null, c: '3', d: '' } } })).status,
    ).toBe(204)
    expect(await metadata()).toEqual({ b: '2', c: '3' })
    expect(
      (
        await machines.call('PUT', body.id, '/metadata', {
          body: { metadata: { b: '', x: 'y' }, machine_version: body.version },
        })
      ).status,
    ).toBe(204)
    expect(await metadata()).toEqual({ c: '3', x: 'y' })
    expect(
      (await machines.call('PUT', body.id, '/metadata', { body: { metadata: {}, machine_version: 'other' } })).status,
    ).toBe(412)
    expect((await machines.call('PUT', body.id, '/metadata', { body: {} })).status).toBe(400)
    expect((await machines.call('POST', body.id, '/metadata/k%2F1', { body: { value: 'v' } })).status).toBe(204)
    expect((await machines.call('GET', body.id, '/metadata/k%2F1')).body).toEqual({ value: 'v' })
    expect((await machines.call('DELETE', body.id, '/metadata/x')).status).toBe(204)
    expect((await machines.call('GET', body.id, '/metadata/x')).status).toBe(404)
    expect((await machines.call('GET', body.id, '/metadata/constructor')).status).toBe(404)
    expect((await machines.call('GET', body.id)).body.version).toBe(body.version)
  })
})

describe('lists', () => {
  test('of an app support every filter', async () => {
    const a = await started({ region: 'fra' }, { metadata: { role: 'web', tier: '1' } })
    const b = (await create({ skip_launch: true }, { metadata: { role: 'web' } })).body.id
    const ids = async (query: string) => (await call('GET', `${path}${query}`)).body.map(({ id }: { id: string }) => id)
    expect(await ids('')).toEqual([a, b])
    expect(await ids('?region=fra')).toEqual([a])
    expect(await ids('?state=created,stopped')).toEqual([b])
    expect(await ids('?metadata.role=web')).toEqual([a, b])
    expect(await ids('?metadata.role=web&metadata.tier=1')).toEqual([a])
    expect((await call('GET', `${path}?state=odd`)).status).toBe(400)
    const [summary] = (await call('GET', `${path}?summary=true`)).body
    for (const field of ['config', 'events', 'checks', 'host_status']) expect(summary).not.toHaveProperty(field)
  })

  test('of an organization are paged, ordered by the last change', async () => {
    await platform.setQuotas({ machines: 'unlimited' })
    await platform.createApp('second')
    const other = machinesOf(platform, 'second')
    const ids = [
      (await create({ skip_launch: true })).body.id,
      (await other.create({ skip_launch: true })).body.id,
      (await create({ skip_launch: true })).body.id,
    ]
    const first = await call('GET', '/v1/orgs/personal/machines?limit=2')
    expect(first.body.machines.map(({ id, app_name }: Record<string, string>) => [id, app_name])).toEqual([
      [ids[0], 'shop'],
      [ids[1], 'second'],
    ])
    const second = await call('GET', `/v1/orgs/personal/machines?limit=2&cursor=${first.body.next_cursor}`)
    expect(second.body).toMatchObject({
      machines: [{ id: ids[2] }],
      next_cursor: '',
      last_machine_id: ids[2],
      error_regions: [],
    })
    const after = await call('GET', `/v1/orgs/personal/machines?updated_after=${second.body.last_updated_at}`)
    expect(after.body.machines).toEqual([])
    await platform.sql(
      `insert into machine (id, app_id, name, state, region, instance_id, config, network_number, wanted)
       select lpad(to_hex(nth), 14, '0'), app_id, 'm' || nth, 'created', region, instance_id, config, network_number, false
       from machine, generate_series(1, 100) nth where id = $1`,
      [ids[0]],
    )
    const all = await call('GET', '/v1/orgs/personal/machines?summary=true')
    expect([all.body.machines.length, all.body.next_cursor]).toEqual([103, ''])
    expect((await call('GET', '/v1/orgs/personal/machines?cursor=odd')).status).toBe(400)
    expect((await call('GET', '/v1/orgs/nobody/machines')).status).toBe(404)
  })

  test('show where machines would be placed', async () => {
    expect((await call('POST', '/v1/platform/placements', { body: { org_slug: 'personal', count: 2 } })).body).toEqual({
      regions: [{ region: 'local', count: 2, concurrency: 2 }],
    })
    const countOf = async (body: object) => {
      const reply = await call('POST', '/v1/platform/placements', { body: { org_slug: 'personal', ...body } })
      return reply.body.regions[0].count
    }
    const fitting = await countOf({ count: 0 })
    expect(fitting).toBeGreaterThan(1)
    expect(await countOf({ compute: { memory_mb: 512 } })).toBe(Math.floor(fitting / 2))
    const compute = { cpu_kind: 'performance', cpus: 16, memory_mb: 131_072 }
    expect((await call('POST', '/v1/platform/placements', { body: { org_slug: 'personal', compute } })).status).toBe(
      422,
    )
  })
})
