import { beforeEach, describe, expect, test } from 'vitest'
import { collectImages } from '../../../src/reconcile/app/image-collection.ts'
import { type CallOptions, type Method, usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const { call, callSandbox } = platform

async function usedOf(name: string): Promise<number> {
  const { body } = await call('GET', '/v1/orgs/personal/quotas')
  return body.quotas.find((quota: { name: string }) => quota.name === name).used
}

/** The counters must always have the numbers that counting the rows gives. */
async function expectCountersCorrect(): Promise<void> {
  const counted = await platform.sql('select * from counted_usage where used <> 0 order by org_id, quota')
  expect(await platform.sql('select * from org_usage where used <> 0 order by org_id, quota')).toEqual(counted)
}

const createVolume = (body: object = {}) =>
  call('POST', '/v1/apps/shop/volumes', { body: { name: 'data', size_gb: 1, ...body } })
const createMachine = (body: object = {}) =>
  call('POST', '/v1/apps/shop/machines', { body: { config: { image: 'nginx:1' }, skip_launch: true, ...body } })
const createCluster = (name: string, body: object = {}) =>
  call('POST', '/v1/postgres', { body: { org_slug: 'personal', plan: 'basic', name, ...body } })
const createSandbox = (name: string, body: object = {}) =>
  callSandbox('POST', '/v1/sandboxes', { body: { name, ...body } })

beforeEach(async () => {
  await platform.createApp('shop')
})

/** Runs the loop until the streamed answer has ended. */
async function whileWorking<T>(answer: Promise<T>): Promise<T> {
  let hasEnded = false
  const ended = answer.finally(() => {
    hasEnded = true
  })
  while (!hasEnded) {
    await platform.sql('update work set run_at = now(), leased_until = null')
    await platform.turn()
  }
  return ended
}

describe('disk_gb', () => {
  test('is the sum of what clusters, volumes and sandboxes reserve', async () => {
    await platform.setQuotas({ disk_gb: 20 })
    expect((await createCluster('db', { disk_size_gb: 5 })).status).toBe(201)
    expect((await createVolume({ size_gb: 5 })).status).toBe(200)
    expect((await createSandbox('box', { config: { storage_gb: 5 } })).status).toBe(201)
    expect(await usedOf('disk_gb')).toBe(15)
    for (const refused of [
      await createCluster('big', { disk_size_gb: 6 }),
      await createVolume({ size_gb: 6 }),
      await createSandbox('more', { config: { storage_gb: 6 } }),
    ]) {
      expect(refused.status).toBe(422)
      expect(refused.body.message ?? refused.body.error).toContain(
        'quota disk_gb exceeded: organization personal uses 15 of 20 and 6 more were asked for',
      )
    }
    expect(await usedOf('clusters')).toBe(1)
    await expectCountersCorrect()
  })

  test('also limits growing', async () => {
    await platform.setQuotas({ disk_gb: 10 })
    const volume = (await createVolume({ size_gb: 4 })).body
    await createSandbox('box', { config: { storage_gb: 4 } })
    await platform.workUntil('volume', 'created')
    const extend = (size_gb: number) => call('PUT', `/v1/apps/shop/volumes/${volume.id}/extend`, { body: { size_gb } })
    const resize = (storage_gb: number) => callSandbox('PUT', '/v1/sandboxes/box', { body: { config: { storage_gb } } })
    expect((await extend(7)).status).toBe(422)
    expect((await resize(7)).status).toBe(422)
    expect(await usedOf('disk_gb')).toBe(8)
    expect((await extend(6)).status).toBe(200)
    expect((await resize(5)).status).toBe(422)
    expect((await resize(1)).status).toBe(200)
    expect(await usedOf('disk_gb')).toBe(7)
    await expectCountersCorrect()
  })

  test('stops a volume from growing by itself, and the loop goes on', async () => {
    await platform.setQuotas({ disk_gb: 1 })
    const volume = (await createVolume({ size_gb: 1 })).body
    await platform.workUntil('volume', 'created')
    const mount = { volume: volume.id, path: '/data', extend_threshold_percent: 50, add_size_gb: 1, size_gb_limit: 9 }
    expect((await createMachine({ config: { image: 'nginx:1', mounts: [mount] } })).status).toBe(200)
    platform.fake.diskUse.set(volume.id, 0.95 * 1024 ** 3)
    await platform.sql(`update work set run_at = 'infinity'`)
    await platform.sql(`update work set run_at = now(), leased_until = null where resource_id = $1`, [volume.id])
    await platform.turn()
    expect(await platform.sql('select state, size_gb from volume')).toEqual([{ state: 'created', size_gb: 1 }])
    expect(await platform.sql('select note from work where resource_id = $1', [volume.id])).toEqual([
      { note: 'it is full; the quota disk_gb of the organization does not let it grow' },
    ])
  })
})

test('deleted volumes are kept for a day only while they fit into disk_gb', async () => {
  await platform.setQuotas({ disk_gb: 10 })
  const ids: string[] = []
  for (let i = 0; i < 3; i++) {
    const made = await createVolume({ size_gb: 5 })
    expect(made.status).toBe(200)
    ids.push(made.body.id)
    await platform.sql(`update volume set state = 'created' where id = $1`, [made.body.id])
    await call('DELETE', `/v1/apps/shop/volumes/${made.body.id}`)
  }
  const rows = await platform.sql('select id, state from volume')
  const states = ids.map((id) => rows.find((row) => row.id === id)?.state)
  expect(states).toEqual(['pending_destroy', 'pending_destroy', 'destroying'])
})

describe('deleting frees a quota at once:', () => {
  test('a machine, a volume, a cluster and a sandbox', async () => {
    await platform.setQuotas({ machines: 1, volumes: 1, clusters: 1, sandboxes: 1 })
    const machine = (await createMachine()).body.id
    const volume = (await createVolume()).body.id
    const cluster = (await createCluster('db')).body.data.id
    expect((await createSandbox('box')).status).toBe(201)
    await call('DELETE', `/v1/apps/shop/machines/${machine}?force=true`)
    await call('DELETE', `/v1/apps/shop/volumes/${volume}`)
    await call('DELETE', `/v1/postgres/${cluster}`)
    await callSandbox('DELETE', '/v1/sandboxes/box')
    expect((await createMachine()).status).toBe(200)
    expect((await createVolume()).status).toBe(200)
    expect((await createCluster('db2')).status).toBe(201)
    expect((await createSandbox('box')).status).toBe(201)
    await expectCountersCorrect()
  })

  test('all that an app owns, with the app', async () => {
    await createMachine()
    await createVolume({ size_gb: 7 })
    await call('POST', '/v1/apps/shop/secrets/KEY', { body: { value: 'x' } })
    await call('POST', '/v1/apps/shop/ip_assignments', { body: { type: 'v4' } })
    expect((await call('DELETE', '/v1/apps/shop?force=true')).status).toBe(202)
    for (const name of ['apps', 'machines', 'volumes', 'disk_gb', 'secrets', 'addresses']) {
      expect(await usedOf(name), name).toBe(0)
    }
    await expectCountersCorrect()
    await platform.work()
    await expectCountersCorrect()
  })

  test('a token that is revoked or expired', async () => {
    await platform.setQuotas({ tokens: 2 })
    const create = (extra: object = {}) =>
      call('POST', '/v1/tokens', { body: { kind: 'read', org_slug: 'personal', ...extra } })
    const first = (await create()).body.id
    await create({ expires_in_seconds: 3600 })
    expect((await create()).status).toBe(422)
    await call('DELETE', `/v1/tokens/${first}`)
    expect((await create()).status).toBe(201)
    expect((await create()).status).toBe(422)
    await platform.sql(`update token set expires_at = now() - interval '1 second' where expires_at is not null`)
    expect((await create()).status).toBe(201)
    await expectCountersCorrect()
  })

  test('the token that a sandbox has for itself never counts', async () => {
    await platform.setQuotas({ tokens: 0 })
    expect((await createSandbox('box')).status).toBe(201)
  })
})

describe('what the platform creates by itself does not count:', () => {
  test('scheduled backups, unlike those that were asked for', async () => {
    const id = (await createCluster('db')).body.data.id
    const finish = () =>
      until(async () => {
        await platform.sql(`update work set run_at = now(), leased_until = null`)
        await platform.turn()
        return (await platform.sql(`select 1 from backup where state <> 'completed'`)).length === 0 && isBackedUp()
      })
    const isBackedUp = async () => (await platform.sql('select 1 from backup')).length > 0
    await finish()
    expect(await usedOf('backups')).toBe(0)
    await platform.setQuotas({ backups: 1 })
    const create = () => call('POST', `/v1/postgres/${id}/backups`, { body: {} })
    expect((await create()).status).toBe(202)
    await finish()
    expect((await create()).status).toBe(422)
    expect(await usedOf('backups')).toBe(1)
    await expectCountersCorrect()
  })

  test('daily snapshots, unlike those that were asked for', async () => {
    const id = (await createVolume()).body.id
    await platform.setQuotas({ snapshots: 1 })
    await platform.workUntil('volume', 'created')
    const create = () => call('POST', `/v1/apps/shop/volumes/${id}/snapshots`)
    expect((await create()).status).toBe(200)
    await platform.sql(`update snapshot set state = 'created'`)
    expect((await create()).status).toBe(422)
    await platform.sql(`insert into snapshot (id, volume_id, volume_bytes, retention_days) values ('vs_1', $1, 1, 5)`, [
      id,
    ])
    expect(await usedOf('snapshots')).toBe(1)
    await expectCountersCorrect()
  })

  test('the scratch cluster of a drill, unlike a restored cluster', async () => {
    await createCluster('db')
    await platform.setQuotas({ clusters: 1, disk_gb: 10, database_users: 1 })
    await platform.sql(
      `insert into cluster (id, org_id, name, plan, pg_major, disk_size_gb, region, postgis_enabled, pool_mode, scratch)
       select 'scratch', org_id, 'scratch', plan, pg_major, disk_size_gb, region, postgis_enabled, pool_mode, true
       from cluster`,
    )
    await platform.sql(
      `insert into cluster_user (cluster_id, username, role, password) values ('scratch', 'one', 'reader', '')`,
    )
    expect(await usedOf('clusters')).toBe(1)
    await expectCountersCorrect()
    await expect(
      platform.sql(`update cluster set scratch = scratch, state = 'deleting' where id = 'scratch'`),
    ).resolves.toEqual([])
    await expectCountersCorrect()
  })

  test('automatic checkpoints, unlike those that were asked for', async () => {
    await createSandbox('box')
    await platform.setQuotas({ checkpoints: 1 })
    const create = () => whileWorking(callSandbox('POST', '/v1/sandboxes/box/checkpoint', { body: {} }))
    expect((await create()).status).toBe(200)
    expect(await create()).toMatchObject({ status: 422, body: { error: 'quota_exceeded', limit: 1, current_count: 1 } })
    const restored = await whileWorking(callSandbox('POST', '/v1/sandboxes/box/checkpoints/v1/restore'))
    expect(restored.status).toBe(200)
    expect(await usedOf('checkpoints')).toBe(1)
    await callSandbox('DELETE', '/v1/sandboxes/box')
    expect(await usedOf('checkpoints')).toBe(0)
    await expectCountersCorrect()
  })
})

test('the users of a cluster count until the cluster is deleted', async () => {
  const id = (await createCluster('db')).body.data.id
  const before = await usedOf('database_users')
  await platform.setQuotas({ database_users: before + 1 })
  const add = (name: string) =>
    platform.sql(`insert into cluster_user (cluster_id, username, role, password) values ($1, $2, 'reader', '')`, [
      id,
      name,
    ])
  await add('one')
  await expect(add('two')).rejects.toThrow('quota database_users exceeded')
  await call('DELETE', `/v1/postgres/${id}`)
  expect(await usedOf('database_users')).toBe(0)
  await expectCountersCorrect()
})

test('boxes that are being removed can use at most as many slots again', async () => {
  await platform.setQuotas({ machines: 1, sandboxes: 1 })
  for (let i = 0; i < 4; i++) {
    expect((await createSandbox(`box${i}`)).status).toBe(201)
    await callSandbox('DELETE', `/v1/sandboxes/box${i}`)
  }
  const refused = await createSandbox('box4')
  expect(refused).toMatchObject({
    status: 429,
    headers: { 'retry-after': '5' },
    body: { error: 'quota_exceeded', limit: 4, retry_after_seconds: 5 },
  })
  expect(refused.body.message).toContain('try again in a few seconds')
  const machine = await createMachine()
  expect(machine).toMatchObject({ status: 429, headers: { 'retry-after': '5' }, body: { status: 'quota_exceeded' } })
  await platform.work()
  expect((await createSandbox('box4')).status).toBe(201)
  await expectCountersCorrect()
})

test('an image counts until the host may forget it', async () => {
  await platform.setQuotas({ images: 1 })
  expect((await createSandbox('one', { image: 'debian:12' })).status).toBe(201)
  expect((await createSandbox('two', { image: 'debian:12' })).status).toBe(201)
  expect((await createSandbox('three', { image: 'debian:13' })).status).toBe(422)
  expect((await createMachine({ config: { image: 'docker.io/library/debian:14' } })).status).toBe(422)
  await callSandbox('DELETE', '/v1/sandboxes/one')
  await callSandbox('DELETE', '/v1/sandboxes/two')
  expect(await usedOf('images')).toBe(1)
  await platform.sql(`update org_image set used_at = now() - interval '2 hours'`)
  await collectImages(platform.fake.world(platform.database.db))
  expect(await usedOf('images')).toBe(0)
  expect((await createSandbox('three', { image: 'debian:13' })).status).toBe(201)
  await expectCountersCorrect()
})

test('the images of containers count', async () => {
  const containers = (...images: string[]) => ({
    config: { containers: images.map((image, at) => ({ name: `c${at}`, image })) },
  })
  await platform.setQuotas({ images: 2 })
  expect((await createMachine(containers('nginx:1', 'nginx:2', 'nginx:3'))).status).toBe(422)
  const { id } = (await createMachine(containers('nginx:1', 'nginx:2', 'nginx:2'))).body
  expect(await usedOf('images')).toBe(2)
  const update = (body: object) => call('POST', `/v1/apps/shop/machines/${id}`, { body })
  expect((await update(containers('nginx:1', 'nginx:3'))).status).toBe(422)
  await platform.sql(`update org_image set used_at = now() - interval '2 hours'`)
  await collectImages(platform.fake.world(platform.database.db))
  expect(await usedOf('images')).toBe(2)
  await expectCountersCorrect()
})

test('an update of a machine to another image counts', async () => {
  const { id } = (await createMachine()).body
  await platform.setQuotas({ images: 1 })
  const update = (image: string) => call('POST', `/v1/apps/shop/machines/${id}`, { body: { config: { image } } })
  expect((await update('nginx:2')).status).toBe(422)
  expect((await update('nginx:1')).status).toBe(200)
})

test('a machine keeps only its newest versions', async () => {
  const { id } = (await createMachine()).body
  await platform.sql(
    `insert into machine_version (machine_id, version, config) select $1, lpad(n::text, 26, '0'), '{}' from generate_series(1, 150) n`,
    [id],
  )
  await call('POST', `/v1/apps/shop/machines/${id}`, { body: { config: { image: 'nginx:1' }, skip_launch: true } })
  expect(await platform.sql('select count(*) from machine_version where machine_id = $1', [id])).toEqual([
    { count: 100 },
  ])
})

test('a refusal is repeated with the same Idempotency-Key', async () => {
  await platform.setQuotas({ clusters: 0, apps: 1 })
  const post = (url: string, body: object, key: string) =>
    call('POST', url, { body, headers: { 'idempotency-key': key } } satisfies CallOptions)
  for (const [url, body] of [
    ['/v1/postgres', { org_slug: 'personal', plan: 'basic', name: 'db' }],
    ['/v1/apps', { org_slug: 'personal', app_name: 'second' }],
  ] as const) {
    await platform.setQuotas({ clusters: 0, apps: 1 })
    const refused = await post(url, body, 'one')
    expect(refused).toMatchObject({ status: 422, body: { status: 'quota_exceeded' } })
    await platform.setQuotas({ clusters: 9, apps: 9 })
    expect(await post(url, body, 'one')).toMatchObject({ status: 422, body: refused.body })
    expect((await post(url, body, 'two')).status).toBe(201)
  }
})

test('a batch of apps of several organizations refuses only those that do not fit', async () => {
  await platform.createOrg('other')
  await platform.setQuotas({ apps: 3 })
  const create = (name: string, org: string) => platform.createApp(name, { org_slug: org })
  const replies = await Promise.all(
    Array.from({ length: 60 }, (_, i) => create(`n${i}`, i % 2 === 0 ? 'personal' : 'other')),
  )
  const created = (parity: number) => replies.filter(({ status }, i) => i % 2 === parity && status === 201).length
  expect([created(0), created(1)]).toEqual([2, 30])
  await expectCountersCorrect()
})

test('counters stay correct under concurrent creations and deletions of everything', async () => {
  await platform.setQuotas({ machines: 6, volumes: 6, sandboxes: 6, clusters: 6, apps: 4, disk_gb: 60 })
  const random = (n: number) => Math.floor(Math.random() * n)
  const ask = (method: Method, url: string, body?: object) => call(method, url, body ? { body } : {})
  async function act(): Promise<number> {
    const app = `app${random(4)}`
    switch (random(9)) {
      case 0:
        return (await platform.createApp(app)).status
      case 1:
        return (await ask('DELETE', `/v1/apps/${app}?force=true`)).status
      case 2:
        return (
          await ask('POST', `/v1/apps/${app}/machines`, { config: { image: `i:${random(5)}` }, skip_launch: true })
        ).status
      case 3: {
        const [machine] = await platform.sql(`select id, name from machine where state = 'stopped' order by random()`)
        return machine ? (await ask('DELETE', `/v1/apps/${app}/machines/${machine.id}?force=true`)).status : 0
      }
      case 4:
        return (await ask('POST', `/v1/apps/${app}/volumes`, { name: 'data', size_gb: 1 + random(9) })).status
      case 5:
        return (await ask('POST', `/v1/apps/${app}/secrets/S${random(9)}`, { value: 'x' })).status
      case 6:
        return (await createSandbox(`box${random(9)}`)).status
      case 7:
        return (await callSandbox('DELETE', `/v1/sandboxes/box${random(9)}`)).status
      default: {
        const [cluster] = await platform.sql(
          `select id from cluster where state = 'creating' order by random() limit 1`,
        )
        if (cluster && random(2) === 0) return (await ask('DELETE', `/v1/postgres/${cluster.id}`)).status
        return (await createCluster(`db${random(20)}`)).status
      }
    }
  }
  for (let round = 0; round < 8; round++) {
    const statuses = await Promise.all(Array.from({ length: 25 }, act))
    expect(statuses.filter((status) => status >= 500)).toEqual([])
    await expectCountersCorrect()
  }
})
