import { describe, expect, test } from 'vitest'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()

const create = (extra: object = {}) =>
  platform.call('POST', '/v1/postgres', { body: { org_slug: 'personal', plan: 'basic', ...extra } })
const update = (id: string, body: object, token?: string) =>
  platform.call('PATCH', `/v1/postgres/${id}`, token === undefined ? { body } : { body, token })
const retentionOf = async (id: string) =>
  (await platform.call('GET', `/v1/postgres/${id}`)).body.data.retention_days as number

async function ready(extra: object = {}): Promise<string> {
  const { id } = (await create(extra)).body.data
  await platform.workUntil('cluster', 'ready')
  return id
}

async function addBackup(clusterId: string, daysAgo: number): Promise<void> {
  await platform.sql(
    `insert into backup (id, cluster_id, label, state, epoch, timeline, start_lsn, stop_lsn, started_at, stopped_at, finished_at, verified_at)
     values ($2, $1, to_char(now() - $3::int * interval '1 day', 'YYYYMMDD-HH24MISS"F"'), 'completed', 1, 1, '0/1000028',
       '0/1000100', now() - $3::int * interval '1 day', now() - $3::int * interval '1 day', now() - $3::int * interval '1 day', now())`,
    [clusterId, `${daysAgo} days`, daysAgo],
  )
}

/** Runs retention once; returns the ages of the backups that are kept. */
async function retain(id: string): Promise<string[]> {
  await platform.sql('update cluster set retention_at = null')
  for (let looks = 0; looks < 3; looks++) {
    await platform.sql(`update work set run_at = 'infinity', leased_until = null`)
    await platform.sql('update work set run_at = now() where resource_id = $1', [id])
    await platform.turn()
  }
  const rows = await platform.sql(
    `select id from backup where cluster_id = $1 and id ~ 'days' and state = 'completed' order by stopped_at`,
    [id],
  )
  return rows.map((row) => row.id)
}

describe('the retention of a cluster', () => {
  test('is that of the platform unless the owner chooses another one', async () => {
    const id = await ready()
    expect(await retentionOf(id)).toBe(7)
    expect(await update(id, { retention_days: 14 })).toMatchObject({
      status: 200,
      body: { data: { retention_days: 14 } },
    })
    expect(await update(id, {})).toMatchObject({ status: 200, body: { data: { retention_days: 14 } } })
    expect(await update(id, { retention_days: null })).toMatchObject({ body: { data: { retention_days: 7 } } })
    expect((await create({ retention_days: 3 })).body.data.retention_days).toBe(3)
    expect((await create({ retention_days: null })).body.data.retention_days).toBe(7)
  })

  test.each([
    [0, 'retention_days must be from 1 to 35, or null for the 7 days of this platform'],
    [-1, 'retention_days must be from 1 to 35, or null for the 7 days of this platform'],
    [36, 'retention_days must be from 1 to 35, or null for the 7 days of this platform'],
    [1.5, 'retention_days must be an integer or null'],
    ['14', 'retention_days must be an integer or null'],
    [true, 'retention_days must be an integer or null'],
  ])('cannot be %j', async (days, error) => {
    const id = await ready()
    expect(await update(id, { retention_days: days })).toMatchObject({ status: 422, body: { error } })
    expect(await create({ retention_days: days })).toMatchObject({ status: 422, body: { error } })
    expect(await retentionOf(id)).toBe(7)
  })

  test('can be changed only by those who may change the cluster', async () => {
    const id = await ready()
    await platform.createOrg('acme')
    expect((await update(id, { retention_days: 1 }, await platform.createToken('org', 'acme'))).status).toBe(404)
    expect((await update(id, { retention_days: 1 }, await platform.createToken('read', 'personal'))).status).toBe(401)
    expect((await update('aaaaaaaaaaaaaaaa', { retention_days: 1 })).status).toBe(404)
    await platform.call('DELETE', `/v1/postgres/${id}`)
    expect(await update(id, { retention_days: 1 })).toMatchObject({
      status: 422,
      body: { error: 'Cluster is being deleted' },
    })
  })

  test('decides which backups are kept, from the next time that expired ones are removed', async () => {
    const id = await ready()
    for (const days of [20, 12, 10, 5, 2]) await addBackup(id, days)
    await update(id, { retention_days: 11 })
    // The newest backup before the window is needed to restore its first moments.
    expect(await retain(id)).toEqual(['12 days', '10 days', '5 days', '2 days'])
    await update(id, { retention_days: 3 })
    expect((await platform.sql(`select 1 from backup where state = 'completed' and id ~ 'days'`)).length).toBe(4)
    expect(await retain(id)).toEqual(['5 days', '2 days'])
    await update(id, { retention_days: 30 })
    expect(await retain(id)).toEqual(['5 days', '2 days'])
  })

  test('is stored in the repository', async () => {
    const id = await ready({ retention_days: 21 })
    await retain(id)
    expect(platform.fake.descriptions.get(id)).toMatchObject({ retentionDays: 21 })
    await update(id, { retention_days: 22 })
    await retain(id)
    expect(platform.fake.descriptions.get(id)).toMatchObject({ retentionDays: 22 })
  })
})

describe('on a platform that keeps backups longer', () => {
  const generous = usePlatform({ settings: { pitrDays: 90 } })

  test('owners may choose up to that', async () => {
    const create = (days: number) =>
      generous.call('POST', '/v1/postgres', { body: { org_slug: 'personal', plan: 'basic', retention_days: days } })
    expect((await create(90)).body.data.retention_days).toBe(90)
    expect((await create(91)).body.error).toMatch('from 1 to 90, or null for the 90 days')
  })
})
