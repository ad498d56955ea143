import fc from 'fast-check'
import { beforeEach, describe, expect, test } from 'vitest'
import { lockMachine } from '../../../src/store/app/machine.ts'
import { attachVolume, detachVolumes } from '../../../src/store/app/volume.ts'
import { insertMachineRow } from '../../support/machine.ts'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake } = platform
const path = '/v1/apps/shop/volumes'

const make = (body: object = {}, url = path) => platform.call('POST', url, { body: { name: 'data', ...body } })
const get = (id: string) => platform.call('GET', `${path}/${id}`)
const snapshots = async (id: string) => (await platform.call('GET', `${path}/${id}/snapshots`)).body

beforeEach(() => platform.createApp('shop'))

/** Runs a few rounds of steps; periodic work never ends, so it cannot run until nothing is due. */
async function settle(rounds = 6) {
  for (let i = 0; i < rounds; i++) {
    for (const { kind, resource_id } of await platform.sql('select kind, resource_id from work')) {
      await platform.sql(
        `update work set leased_until = null,
           run_at = now() + interval '1 hour' * case when kind = $1 and resource_id = $2 then -1 else 1 end`,
        [kind, resource_id],
      )
      await platform.turn()
    }
  }
}

async function ready(body: object = {}): Promise<string> {
  const { body: volume } = await make(body)
  await settle(2)
  return volume.id
}

async function addMachine(id: string, state = 'started', app = 'shop') {
  const [row] = await platform.sql(`select id from app where name = $1 and state = 'active'`, [app])
  await platform.sql(insertMachineRow, [id, row!.id, state])
  return row!.id as string
}

const attach = (asked: Parameters<typeof attachVolume>[1]) =>
  platform.database.db.transaction((tx) => attachVolume(tx, asked))

describe('creating a volume', () => {
  test('returns the documented fields, and makes the disk in the background', async () => {
    const made = await make({ size_gb: 2, region: 'ams', compute: { cpus: 1 } })
    expect(made.status).toBe(200)
    expect(made.body).toEqual({
      id: expect.stringMatching(/^vol_[a-z0-9]{16}$/),
      name: 'data',
      state: 'creating',
      size_gb: 2,
      region: 'ams',
      zone: expect.stringMatching(/^[0-9a-f]{4}$/),
      encrypted: false,
      attached_machine_id: null,
      attached_alloc_id: null,
      created_at: expect.stringMatching(/\.\d{3}Z$/),
      updated_at: made.body.created_at,
      fstype: 'ext4',
      type: 'local',
      host_status: 'ok',
      host_dedication_key: '',
      snapshot_retention: 5,
      auto_backup_enabled: true,
      bytes_total: 2 * 1024 ** 3,
    })
    await settle(2)
    expect((await get(made.body.id)).body).toMatchObject({
      state: 'created',
      blocks: 524_288,
      block_size: 4096,
      blocks_free: 524_188,
      bytes_used: 409_600,
    })
    expect(fake.disks.get(made.body.id)).toBe(2)
    expect((await platform.call('GET', '/v1/apps/shop')).body.volume_count).toBe(1)
  })

  test('accepts nulls for omitted fields', async () => {
    const nulls = { size_gb: null, encrypted: null, fstype: null, snapshot_id: null, snapshot_retention: null }
    expect(await make(nulls)).toMatchObject({ status: 200, body: { size_gb: 3, snapshot_retention: 5 } })
  })

  test('that fails reports why', async () => {
    fake.diskProblem = 'no space left'
    const id = await ready()
    expect((await get(id)).body).toMatchObject({ state: 'failed', failure: 'no space left' })
    expect((await platform.call('DELETE', `${path}/${id}`)).body.state).toBe('destroying')
    await settle(2)
    expect((await get(id)).status).toBe(404)
  })

  test.each([
    [{ name: undefined }, 422, /name/],
    [{ name: '' }, 422, /name must be/],
    [{ name: 'Upper' }, 422, /name must be/],
    [{ name: 'a-b' }, 422, /name must be/],
    [{ name: 'a'.repeat(31) }, 422, /name must be/],
    [{ size_gb: 0 }, 422, /size_gb/],
    [{ size_gb: 501 }, 422, /size_gb/],
    [{ size_gb: 1.5 }, 422, /size_gb/],
    [{ size_gb: '3' }, 422, /size_gb/],
    [{ region: 'No Region' }, 422, /region/],
    [{ fstype: 'raw' }, 422, /raw is not possible/],
    [{ fstype: 'xfs' }, 422, /fstype/],
    [{ snapshot_retention: 0 }, 422, /snapshot_retention/],
    [{ snapshot_retention: 61 }, 422, /snapshot_retention/],
    [{ auto_backup_enabled: 'yes' }, 422, /auto_backup_enabled/],
    [{ snapshot_id: 'vs_0000000000000000' }, 404, /snapshot not found/],
    [{ snapshot_id: '../x' }, 404, /snapshot not found/],
    [{ source_volume_id: 'vol_0000000000000000' }, 404, /volume not found/],
    [{ source_volume_id: 'x\0' }, 404, /volume not found/],
    [{ source_volume_id: 'vol_0000000000000000', snapshot_id: 'vs_0000000000000000' }, 422, /mutually exclusive/],
  ])('with %j is refused', async (body, status, sentence) => {
    const refused = await make(body)
    expect(refused.status).toBe(status)
    expect(refused.body.error).toMatch(sentence)
    expect(await platform.sql('select 1 from volume')).toEqual([])
  })

  test('with any input never causes an internal error', async () => {
    const field = fc.constantFrom('name', 'size_gb', 'region', 'fstype', 'snapshot_id', 'source_volume_id')
    await fc.assert(
      fc.asyncProperty(fc.dictionary(field, fc.jsonValue()), async (body) => {
        expect((await platform.call('POST', path, { body })).status).toBeLessThan(500)
      }),
      { numRuns: 40 },
    )
  })

  test('as a copy needs a source that is ready, and at least its size', async () => {
    const { body: source } = await make({ size_gb: 4 })
    expect((await make({ source_volume_id: source.id })).status).toBe(412)
    await settle(2)
    expect(await make({ source_volume_id: source.id, size_gb: 3 })).toMatchObject({ status: 422 })
    expect(await make({ source_volume_id: source.id })).toMatchObject({ status: 200, body: { size_gb: 4 } })
    await platform.call('POST', `${path}/${source.id}/snapshots`)
    const [snapshot] = await snapshots(source.id)
    expect((await make({ snapshot_id: snapshot.id })).status).toBe(412)
    await settle()
    const copy = await make({ snapshot_id: snapshot.id, size_gb: 5 })
    expect(copy).toMatchObject({ status: 200, body: { size_gb: 5 } })
    await platform.createOrg('acme')
    await platform.createApp('theirs', { org_slug: 'acme' })
    expect((await make({ snapshot_id: snapshot.id }, '/v1/apps/theirs/volumes')).status).toBe(404)
    expect((await make({ source_volume_id: source.id }, '/v1/apps/theirs/volumes')).status).toBe(404)
  })
})

describe('changing a volume', () => {
  test('sets its snapshot options', async () => {
    const id = await ready()
    const body = { snapshot_retention: 30, auto_backup_enabled: false }
    expect(await platform.call('PUT', `${path}/${id}`, { body })).toMatchObject({ status: 200, body })
    expect(await platform.call('PUT', `${path}/${id}`, { body: {} })).toMatchObject({ status: 200, body })
    expect((await platform.call('PUT', `${path}/${id}`, { body: { snapshot_retention: 61 } })).status).toBe(422)
  })

  test('can grow it but not shrink it', async () => {
    const id = await ready()
    const extend = (size_gb: unknown) => platform.call('PUT', `${path}/${id}/extend`, { body: { size_gb } })
    expect(await extend(5)).toMatchObject({
      status: 200,
      body: { volume: { id, size_gb: 5, state: 'extending' }, needs_restart: false },
    })
    expect(await extend(6)).toMatchObject({
      status: 409,
      body: { error: 'cannot extend while extending; possible now: delete' },
    })
    await settle(2)
    expect(fake.disks.get(id)).toBe(5)
    for (const size of [5, 4, 501, 'x', undefined]) expect((await extend(size)).status).toBe(422)
    expect((await get(id)).body).toMatchObject({ size_gb: 5, state: 'created' })
  })

  test('of a running machine grows it at once, unless it is being copied', async () => {
    const id = await ready()
    const appId = await addMachine('m1')
    await attach({ appId, volumeId: id, machineId: 'm1' })
    await platform.sql(`insert into snapshot (id, volume_id, volume_bytes, retention_days) values ('vs_1', $1, 1, 5)`, [
      id,
    ])
    const body = { size_gb: 5 }
    expect((await platform.call('PUT', `${path}/${id}/extend`, { body })).body).toMatchObject({ needs_restart: false })
    await settle(2)
    expect((await get(id)).body).toMatchObject({ size_gb: 5, state: 'extending' })
    expect(fake.disks.get(id)).toBe(3)
    await platform.sql(`update snapshot set state = 'created'`)
    await settle(2)
    expect((await get(id)).body).toMatchObject({ size_gb: 5, state: 'created' })
    expect(fake.disks.get(id)).toBe(5)
  })

  test('does not wait for a change of its machine, which waits for the volume', async () => {
    const id = await ready()
    const appId = await addMachine('m1')
    await attach({ appId, volumeId: id, machineId: 'm1' })
    await platform.database.db.transaction(async (tx) => {
      await lockMachine(tx, 'm1')
      const body = { size_gb: 5 }
      expect((await platform.call('PUT', `${path}/${id}/extend`, { body })).status).toBe(200)
    })
  })

  test('of a running machine reports that a restart is needed', async () => {
    const id = await ready()
    const appId = await addMachine('m1')
    await attach({ appId, volumeId: id, machineId: 'm1' })
    fake.disksGrowAtStart = true
    const body = { size_gb: 5 }
    expect((await platform.call('PUT', `${path}/${id}/extend`, { body })).body).toMatchObject({ needs_restart: true })
    await settle(2)
    expect((await get(id)).body).toMatchObject({ size_gb: 5, state: 'created' })
    expect(fake.disks.get(id)).toBe(3)
  })

  test('is automatic when the machine has a growth threshold', async () => {
    const id = await ready()
    const appId = await addMachine('m1')
    await attach({ appId, volumeId: id, machineId: 'm1' })
    const mount = { volume: id, path: '/data', extend_threshold_percent: 80, add_size_gb: 2, size_gb_limit: 6 }
    await platform.sql(`update machine set config = config || $1`, [{ mounts: [mount] }])
    const sizeWith = async (gigabytes: number) => {
      fake.diskUse.set(id, gigabytes * 1024 ** 3)
      await settle(3)
      return [(await get(id)).body.size_gb, fake.disks.get(id)]
    }
    expect(await sizeWith(2.3)).toEqual([3, 3])
    expect(await sizeWith(2.5)).toEqual([5, 5])
    expect(await sizeWith(4)).toEqual([6, 6])
    expect(await sizeWith(5.9)).toEqual([6, 6])
    // A volume that grows at the next start does not grow again before that.
    fake.disksGrowAtStart = true
    await platform.sql(`update machine set config = jsonb_set(config, '{mounts,0,size_gb_limit}', '0')`)
    expect(await sizeWith(5.5)).toEqual([8, 6])
    expect(await sizeWith(5.6)).toEqual([8, 6])
    const [work] = await platform.sql(
      `select extract(epoch from run_at - now()) as seconds from work where resource_id = $1`,
      [id],
    )
    expect(Number(work!.seconds)).toBeLessThan(11)
  })
})

describe('attaching a volume', () => {
  test('succeeds for only one of twenty concurrent machines', async () => {
    const id = await ready()
    const appId = await addMachine('m0')
    for (let i = 1; i < 20; i++) await addMachine(`m${i}`)
    const results = await Promise.allSettled(
      Array.from({ length: 20 }, (_, i) => attach({ appId, volumeId: id, machineId: `m${i}` })),
    )
    expect(results.filter(({ status }) => status === 'fulfilled')).toHaveLength(1)
    const { attached_machine_id: winner } = (await get(id)).body
    await attach({ appId, volumeId: id, machineId: winner })
    for (const result of results) {
      if (result.status === 'rejected') expect(result.reason).toMatchObject({ code: 'precondition_failed' })
    }
  })

  test('by name gives each machine another free volume', async () => {
    const ids = [await ready(), await ready(), await ready({ name: 'other' })]
    const appId = await addMachine('m1')
    for (const id of ['m2', 'm3']) await addMachine(id)
    const given = await Promise.all(['m1', 'm2'].map((machineId) => attach({ appId, name: 'data', machineId })))
    expect(given.map(({ id }) => id).sort()).toEqual(ids.slice(0, 2).sort())
    await expect(attach({ appId, name: 'data', machineId: 'm3' })).rejects.toMatchObject({
      code: 'precondition_failed',
    })
    await expect(attach({ appId, name: 'none', machineId: 'm3' })).rejects.toMatchObject({ code: 'not_found' })
    await platform.database.db.transaction((tx) => detachVolumes(tx, 'm1'))
    expect(await attach({ appId, name: 'data', machineId: 'm3' })).toEqual({ id: given[0]!.id })
  })

  test('works while it is extended: the machine has the new size when it is started', async () => {
    const id = await ready()
    const machines = machinesOf(platform, 'shop')
    const extended = await platform.call('PUT', `${path}/${id}/extend`, { body: { size_gb: 5 } })
    expect(extended.body.volume.state).toBe('extending')
    const byId = await machines.create({}, { mounts: [{ volume: id, path: '/data' }] })
    expect([byId.status, byId.body.config.mounts[0].volume]).toEqual([200, id])
    await machines.settle()
    expect(await machines.state(byId.body.id)).toBe('started')
    expect(fake.disks.get(id)).toBe(5)
    expect((await get(id)).body).toMatchObject({ state: 'created', size_gb: 5, attached_machine_id: byId.body.id })
  })

  test('ends with the next start when the update that should have unmounted it has failed', async () => {
    const id = await ready()
    const machines = machinesOf(platform, 'shop')
    const machine = await machines.started({}, { mounts: [{ volume: id, path: '/data' }] })
    fake.images.pullsSlowly = true
    const body = { config: { image: 'other' } }
    expect((await machines.call('POST', machine, '', { body })).status).toBe(200)
    await platform.sql(`update machine set state_since = now() - interval '1 hour', progress_at = null`)
    await settle(2)
    expect(await machines.state(machine)).toBe('failed')
    expect((await get(id)).body.attached_machine_id).toBe(machine)
    fake.images.pullsSlowly = false
    await machines.call('POST', machine, '/start')
    await machines.settle()
    expect(await machines.state(machine)).toBe('started')
    expect((await get(id)).body.attached_machine_id).toBe(null)
  })

  test('lets the machine start only after a copy of it is complete', async () => {
    const id = await ready()
    await platform.sql(`insert into snapshot (id, volume_id, volume_bytes, retention_days) values ('vs_1', $1, 1, 5)`, [
      id,
    ])
    const machines = machinesOf(platform, 'shop')
    const { body } = await machines.create({}, { mounts: [{ volume: id, path: '/data' }] })
    await settle(4)
    expect(await machines.state(body.id)).toBe('starting')
    expect(fake.machines.machines.get(body.id)).toBeUndefined()
    await platform.sql(`update snapshot set state = 'created'`)
    await machines.settle()
    expect(await machines.state(body.id)).toBe('started')
  })

  test('by name finds one that is being extended', async () => {
    const id = await ready()
    await platform.call('PUT', `${path}/${id}/extend`, { body: { size_gb: 5 } })
    const appId = await addMachine('m1')
    expect(await attach({ appId, name: 'data', machineId: 'm1' })).toEqual({ id })
  })

  test('of another app is not possible', async () => {
    const id = await ready()
    await platform.createApp('other')
    const appId = await addMachine('m1', 'started', 'other')
    await expect(attach({ appId, volumeId: id, machineId: 'm1' })).rejects.toMatchObject({ code: 'not_found' })
  })
})

describe('deleting a volume', () => {
  const remove = (id: string) => platform.call('DELETE', `${path}/${id}`)

  test('keeps it for a day, during which it can be copied', async () => {
    const id = await ready()
    expect(await remove(id)).toMatchObject({ status: 200, body: { id, state: 'pending_destroy' } })
    expect(await remove(id)).toMatchObject({ status: 200, body: { state: 'pending_destroy' } })
    await settle(2)
    expect(fake.disks.has(id)).toBe(true)
    expect((await make({ source_volume_id: id })).status).toBe(200)
    expect((await platform.call('POST', `${path}/${id}/snapshots`)).status).toBe(412)
    await settle()
    await platform.sql(`update volume set state_since = now() - interval '25 hours' where id = $1`, [id])
    await settle()
    expect(fake.disks.has(id)).toBe(false)
    expect((await get(id)).status).toBe(404)
    expect((await platform.call('GET', '/v1/apps/shop')).body.volume_count).toBe(1)
  })

  test('that is attached is refused', async () => {
    const id = await ready()
    const appId = await addMachine('m1')
    await attach({ appId, volumeId: id, machineId: 'm1' })
    const refused = await remove(id)
    expect(refused.status).toBe(412)
    expect(refused.body.error).toContain('m1')
    await platform.database.db.transaction((tx) => detachVolumes(tx, 'm1'))
    expect((await remove(id)).status).toBe(200)
    await addMachine('m2')
    await expect(attach({ appId, volumeId: id, machineId: 'm2' })).rejects.toMatchObject({
      code: 'precondition_failed',
    })
  })

  test('with its app removes disks and snapshots', async () => {
    const id = await ready()
    await platform.call('POST', `${path}/${id}/snapshots`)
    await make()
    await settle()
    await platform.call('DELETE', '/v1/apps/shop')
    await settle()
    expect([fake.disks.size, fake.diskCopies.size]).toEqual([0, 0])
    for (const table of ['volume', 'snapshot', 'work']) expect(await platform.sql(`select 1 from ${table}`)).toEqual([])
  })

  test('converges although the reply of any one call is lost', async () => {
    for (let nth = 1; nth <= 6; nth++) {
      const id = await ready()
      await platform.call('POST', `${path}/${id}/snapshots`)
      fake.breakCall(nth)
      await settle()
      await platform.call('DELETE', '/v1/apps/shop')
      await settle()
      expect([fake.disks.size, fake.diskCopies.size]).toEqual([0, 0])
      await platform.createApp('shop')
    }
  })
})

describe('snapshots', () => {
  test('are made in the background one at a time', async () => {
    const id = await ready()
    const taken = await Promise.all(Array.from({ length: 5 }, () => platform.call('POST', `${path}/${id}/snapshots`)))
    expect(taken.map(({ status }) => status).sort()).toEqual([200, 409, 409, 409, 409])
    expect(taken.find(({ status }) => status === 200)!.body).toBe('')
    expect(await snapshots(id)).toMatchObject([{ status: 'creating', size: 0 }])
    await settle()
    expect(await snapshots(id)).toEqual([
      {
        id: expect.stringMatching(/^vs_[a-z0-9]{16}$/),
        size: 409_600,
        volume_size: 3 * 1024 ** 3,
        digest: expect.stringMatching(/^[0-9a-f]{64}$/),
        created_at: expect.any(String),
        status: 'created',
        retention_days: 5,
      },
    ])
  })

  test('that fail report it and do not block the next', async () => {
    const id = await ready()
    fake.diskProblem = 'no space left'
    await platform.call('POST', `${path}/${id}/snapshots`)
    await settle()
    expect(await snapshots(id)).toMatchObject([{ status: 'failed' }])
    fake.diskProblem = undefined
    expect((await platform.call('POST', `${path}/${id}/snapshots`)).status).toBe(200)
  })

  test('are removed when they expire', async () => {
    const id = await ready()
    await platform.call('POST', `${path}/${id}/snapshots`)
    await settle()
    await platform.sql(`update snapshot set created_at = now() - interval '4 days 23 hours'`)
    await settle()
    expect(await snapshots(id)).toHaveLength(1)
    await platform.sql(`update snapshot set created_at = now() - interval '5 days 1 hour'`)
    await settle()
    expect(await snapshots(id)).toEqual([])
    expect(fake.diskCopies.size).toBe(0)
  })

  test('are made daily while the volume is used', async () => {
    const [used, unused, manual] = [await ready(), await ready(), await ready({ auto_backup_enabled: false })]
    const appId = await addMachine('m1')
    await addMachine('m2')
    await attach({ appId, volumeId: used, machineId: 'm1' })
    await attach({ appId, volumeId: manual, machineId: 'm2' })
    await settle()
    expect(await platform.sql('select 1 from snapshot')).toEqual([])
    await platform.sql(`update volume set created_at = now() - interval '25 hours'`)
    await settle()
    expect(await snapshots(used)).toHaveLength(1)
    expect([await snapshots(unused), await snapshots(manual)]).toEqual([[], []])
    await settle()
    expect(await snapshots(used)).toHaveLength(1)
    // One more snapshot is made after the volume was detached.
    await platform.sql(`update snapshot set created_at = now() - interval '25 hours'`)
    await platform.database.db.transaction((tx) => detachVolumes(tx, 'm1'))
    await settle()
    expect(await snapshots(used)).toHaveLength(2)
    await platform.sql(`update snapshot set created_at = now() - interval '24 hours'`)
    await platform.sql(`update volume set detached_at = now() - interval '25 hours'`)
    await settle()
    expect(await snapshots(used)).toHaveLength(2)
  })
})

describe('lists', () => {
  test('of an app contain its volumes, without measurements in the summary', async () => {
    const ids = [await ready(), await ready()]
    await platform.createApp('other')
    await make({}, '/v1/apps/other/volumes')
    const list = await platform.call('GET', path)
    expect(list.body.map(({ id }: { id: string }) => id)).toEqual(ids)
    expect(list.body[0]).toHaveProperty('blocks')
    expect((await platform.call('GET', `${path}?summary=true`)).body[0]).not.toHaveProperty('blocks')
    expect((await platform.call('GET', `${path}?summary=x`)).status).toBe(400)
  })

  test('of an organization contain the volumes of all its apps, in pages', async () => {
    await platform.createApp('other')
    for (let i = 0; i < 3; i++) await make()
    for (let i = 0; i < 2; i++) await make({ region: 'ams' }, '/v1/apps/other/volumes')
    const seen: string[] = []
    let cursor = ''
    do {
      const { body } = await platform.call('GET', `/v1/orgs/personal/volumes?limit=2${cursor && `&cursor=${cursor}`}`)
      seen.push(...body.volumes.map(({ id }: { id: string }) => id))
      cursor = body.next_cursor ?? ''
    } while (cursor)
    expect(new Set(seen).size).toBe(5)
    const filtered = await platform.call('GET', '/v1/orgs/personal/volumes?region=ams&state=creating')
    expect(filtered.body.volumes).toMatchObject([{ app_name: 'other' }, { app_name: 'other' }])
    const ids = async (query: string) => {
      const { body } = await platform.call('GET', `/v1/orgs/personal/volumes?${query}`)
      return body.volumes.map(({ id }: { id: string }) => id)
    }
    expect(await ids('state=created,creating')).toEqual(seen)
    const { body } = await platform.call('GET', '/v1/orgs/personal/volumes')
    expect(body.last_volume_id).toBe(seen.at(-1))
    await platform.call('PUT', `${path}/${seen[0]}`, { body: { snapshot_retention: 9 } })
    expect(await ids(`updated_after=${body.last_updated_at}`)).toEqual([seen[0]])
    await platform.sql(`update volume set state = 'destroyed' where id = $1`, [seen[1]])
    expect((await ids('include_deleted=true')).toSorted()).toEqual(seen.toSorted())
    expect(await ids('')).not.toContain(seen[1])
    expect(await ids('state=destroyed')).toEqual([seen[1]])
    for (const query of ['limit=0', 'limit=1001', 'cursor=Li4', 'state=odd', 'updated_after=0000-01-01T00:00:00Z']) {
      expect((await platform.call('GET', `/v1/orgs/personal/volumes?${query}`)).status).toBe(400)
    }
  })
})

test('tokens of other organizations are rejected, and read tokens change nothing', async () => {
  const id = await ready()
  await platform.createOrg('acme')
  await platform.createApp('theirs', { org_slug: 'acme' })
  const stranger = await platform.createToken('org', 'acme')
  const reader = await platform.createToken('read', 'personal')
  const calls = [
    ['GET', path, undefined],
    ['POST', path, { name: 'data' }],
    ['GET', `${path}/${id}`, undefined],
    ['PUT', `${path}/${id}`, { snapshot_retention: 9 }],
    ['DELETE', `${path}/${id}`, undefined],
    ['PUT', `${path}/${id}/extend`, { size_gb: 9 }],
    ['GET', `${path}/${id}/snapshots`, undefined],
    ['POST', `${path}/${id}/snapshots`, undefined],
  ] as const
  for (const [method, url, body] of calls) {
    const options = body === undefined ? {} : { body }
    expect((await platform.call(method, url, { token: null, ...options })).status).toBe(401)
    expect((await platform.call(method, url, { token: stranger, ...options })).status).toBe(403)
    expect((await platform.call(method, url.replace('shop', 'free'), { ...options })).status).toBe(404)
    if (method !== 'GET') expect((await platform.call(method, url, { token: reader, ...options })).status).toBe(403)
    if (!url.includes(id)) continue
    for (const other of ['vol_0000000000000000', 'x', '%00', '..%2f']) {
      expect((await platform.call(method, url.replace(id, other), options)).status).toBe(404)
    }
    // The volume is not found through the caller's own app either.
    const theirs = await platform.call(method, url.replace('shop', 'theirs'), { token: stranger, ...options })
    expect(theirs.status).toBe(404)
  }
  expect((await platform.call('GET', '/v1/orgs/personal/volumes', { token: stranger })).status).toBe(404)
  expect((await platform.call('GET', '/v1/orgs/personal/volumes', { token: null })).status).toBe(401)
  expect((await platform.call('GET', '/v1/orgs/personal/volumes', { token: reader })).status).toBe(200)
  expect((await get(id)).body).toMatchObject({ state: 'created', size_gb: 3, snapshot_retention: 5 })
})
