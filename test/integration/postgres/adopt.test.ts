import { beforeEach, expect, test } from 'vitest'
import type { ClusterDescription } from '../../../src/drivers/repository/driver.ts'
import { newId } from '../../../src/model/ids.ts'
import { parseLsn } from '../../../src/model/postgres/wal.ts'
import { describedBackup } from '../../support/backup-description.ts'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const label = '20261115-100203F'
let id = newId()

beforeEach(() => {
  id = newId()
  platform.fake.archiveEnd = parseLsn('0/4000000')
  platform.fake.archiveTail = { end: parseLsn('0/3000200'), newestCommit: undefined }
  platform.fake.described.push(describedBackup({ clusterId: id, label }))
})

async function adopt() {
  const { body, status } = await platform.call('POST', '/v1/postgres/adopt', { body: {} })
  expect(status, JSON.stringify(body)).toBe(200)
  return body.data
}

/** Runs the step of any resource, whether it is due or not. */
async function workOnce(): Promise<void> {
  await platform.sql(`update work set run_at = now() - random() * interval '1 s', leased_until = null`)
  await platform.turn()
}

const whole = () => ({ id, name: 'shop', backups: 1, windows: 1 })

const adopted = () =>
  platform.sql('select drill_query, retention_days, label, pinned from cluster join backup on cluster_id = cluster.id')

test('an adopted cluster has its pins, its drill query and its retention', async () => {
  platform.fake.descriptions.set(id, {
    drillQuery: 'select 1',
    retentionDays: 21,
    pinned: [label, '20261114-100203F'],
  })
  expect(await adopt()).toEqual({ status: 'done', total: 1, done: 1, adopted: [whole()], known: 0, unusable: [] })
  expect(await adopted()).toEqual([{ drill_query: 'select 1', retention_days: 21, label, pinned: true }])
})

test('an adopted cluster without a description has none of them', async () => {
  expect((await adopt()).adopted).toEqual([whole()])
  expect(await adopted()).toEqual([{ drill_query: null, retention_days: null, label, pinned: false }])
})

test('a cluster whose description is not readable is adopted from its backups', async () => {
  platform.fake.unreadableDescriptions.add(id)
  const {
    adopted: [first],
  } = await adopt()
  expect(first).toEqual({ ...whole(), problems: ['its description is not readable'] })
})

test('a backup that was exchanged is adopted as damaged', async () => {
  platform.fake.foreignBackups.set(label, 'its manifest was changed or belongs to another cluster')
  const {
    adopted: [first],
  } = await adopt()
  expect(first).toMatchObject({
    backups: 1,
    windows: 0,
    problems: [expect.stringContaining(`backup ${label} is damaged`)],
  })
  expect(await platform.sql('select damage from backup')).toEqual([
    { damage: 'its manifest was changed or belongs to another cluster' },
  ])
})

/** A cluster that was restored from the one in the repository and has no backup of its own. */
function describeRestored(child: string, change: Partial<ClusterDescription> = {}): void {
  const backup = { clusterId: id, label, startLsn: '0/3000028', stopLsn: '0/3000120' }
  const pieces = [{ clusterId: id, epoch: 1, timeline: 1, end: '0/3000150' }]
  const base = { backup, pieces, at: '2026-11-15T11:00:00.000000Z' }
  platform.fake.descriptions.set(child, {
    drillQuery: null,
    pinned: [],
    clusterId: child,
    clusterName: 'shop-restored',
    orgSlug: 'acme',
    pgMajor: '17',
    createdAt: '2026-11-15T10:59:00.000000Z',
    settings: { plan: 'launch', diskSizeGb: 7, region: 'fra', poolMode: 'transaction' },
    epochs: [{ epoch: 1, timeline: 2, startLsn: '0/3000100', startedAt: '2026-11-15T11:00:00.000000Z', base }],
    ...change,
  })
}

test('a restored cluster without a backup of its own is adopted with what it depends on', async () => {
  const child = newId()
  describeRestored(child)
  const { adopted: found, unusable } = await adopt()
  expect(unusable).toEqual([])
  expect(found).toContainEqual({ id: child, name: 'shop-restored', backups: 0, windows: 1 })
  expect(
    await platform.sql('select plan, disk_size_gb, region, pool_mode from cluster where id = $1', [child]),
  ).toEqual([{ plan: 'launch', disk_size_gb: 7, region: 'fra', pool_mode: 'transaction' }])
  expect(await platform.sql('select cluster_id, label from pin where holder_id = $1', [child])).toEqual([
    { cluster_id: id, label },
  ])
  const made = await platform.call('POST', `/v1/postgres/${child}/undelete`, { body: {} })
  expect(made.status, JSON.stringify(made.body)).toBe(201)
  let plan: unknown = null
  await until(async () => {
    await workOnce()
    plan = (await platform.sql('select plan from restore where cluster_id = $1', [made.body.data.id]))[0].plan
    return plan !== null
  })
  expect(plan).toMatchObject({
    backup: { clusterId: id, label },
    pieces: [
      { clusterId: id, end: '0/3000150' },
      { clusterId: child, timeline: 2, end: '0/3000200' },
    ],
  })
})

test('a cluster whose clock was changed is adopted without times that can be restored', async () => {
  const epoch = { epoch: 1, timeline: 1, startLsn: '0/3000000', startedAt: '2026-11-15T10:00:00Z', base: null }
  const facts = { clusterId: id, clusterName: 'shop', orgSlug: 'acme', pgMajor: '17', settings: {} }
  platform.fake.descriptions.set(id, {
    drillQuery: null,
    pinned: [],
    ...facts,
    createdAt: '2026-11-15T10:00:00Z',
    epochs: [{ ...epoch, isClockChanged: true }],
  })
  const {
    adopted: [first],
  } = await adopt()
  expect(first).toEqual({ ...whole(), windows: 0, problems: [expect.stringContaining('its clock was changed')] })
  expect((await platform.call('POST', `/v1/postgres/${id}/undelete`, { body: {} })).status).toBe(201)
})

test('a restored cluster whose parent is missing is refused by name, and others are adopted', async () => {
  const child = newId()
  const parent = newId()
  const backup = { clusterId: parent, label, startLsn: '0/3000028', stopLsn: '0/3000120' }
  const pieces = [{ clusterId: parent, epoch: 1, timeline: 1, end: '0/3000150' }]
  const base = { backup, pieces, at: '2026-11-15T11:00:00.000000Z' }
  describeRestored(child, {
    epochs: [{ epoch: 1, timeline: 2, startLsn: '0/3000100', startedAt: '2026-11-15T11:00:00.000000Z', base }],
  })
  const { adopted: found, unusable } = await adopt()
  expect(found).toEqual([whole()])
  expect(unusable).toEqual([
    { id: child, reason: `it depends on backup ${label} of cluster ${parent}, which is not in the repository` },
  ])
})

test('the adoption of many clusters goes on in the background and shows its progress', async () => {
  expect((await platform.call('GET', '/v1/postgres/adopt')).status).toBeOneOf([200, 404])
  for (let n = 1; n < 200; n++)
    platform.fake.described.push(describedBackup({ clusterId: newId(), label, clusterName: `shop-${n}` }))
  const held = Promise.withResolvers<void>()
  const calls = platform.fake.calls
  platform.fake.onCall = (call) => (call === calls + 700 ? held.promise : undefined)
  const first = await adopt()
  expect(first).toMatchObject({ status: 'running', total: 200 })
  const progress = async () => (await platform.call('GET', '/v1/postgres/adopt')).body.data
  expect((await progress()).done).toBeGreaterThan(0)
  expect((await progress()).done).toBeLessThan(200)
  expect((await adopt()).status).toBe('running')
  held.resolve()
  await until(async () => (await progress()).status === 'done')
  expect(await progress()).toMatchObject({ total: 200, done: 200, known: 0, unusable: [] })
  expect((await progress()).adopted).toHaveLength(200)
  expect(await adopt()).toMatchObject({ status: 'done', total: 0, known: 200, adopted: [] })
}, 60_000)

test('only a root token may start or watch an adoption', async () => {
  const token = await platform.createToken('org', 'personal')
  for (const method of ['GET', 'POST'] as const)
    expect((await platform.call(method, '/v1/postgres/adopt', { token })).status).toBe(401)
})

const recorded = { lsn: parseLsn('0/3000900'), at: 1_793_613_600_000_000n }

test('a log that ends before its recorded end is reported, and undeleted only if the owner accepts the loss', async () => {
  const damage = { position: parseLsn('0/3000200'), recorded, reason: 'WAL segment 3 was changed' }
  platform.fake.archiveTail = { end: damage.position, newestCommit: undefined, damage }
  const sentence =
    'it is intact up to 0/3000200, but 0/3000900 was reached at 2026-11-02T10:00:00Z: WAL segment 3 was changed'
  const {
    adopted: [first],
  } = await adopt()
  expect(first).toMatchObject({ windows: 1, problems: [`its write-ahead log is damaged: ${sentence}`] })
  const undelete = (body: object) => platform.call('POST', `/v1/postgres/${id}/undelete`, { body })
  const refused = await undelete({})
  expect(refused).toMatchObject({
    status: 409,
    body: {
      error: expect.stringMatching(/is damaged: it is intact up to 0\/3000200, .*accept_loss \(--accept-loss\)$/),
    },
  })
  expect((await undelete({ accept_loss: 'yes' })).status).toBe(422)
  const made = await undelete({ accept_loss: true })
  expect(made.status, JSON.stringify(made.body)).toBe(201)
  await until(async () => {
    await workOnce()
    return (await platform.sql(`select 1 from cluster where state = 'ready'`)).length === 1
  })
  const { body } = await platform.call('GET', `/v1/postgres/${made.body.data.id}`)
  expect(body.data.restore.loss).toBe(sentence)
  const events = await platform.sql(`select note from event where to_state = 'ready'`)
  expect(events).toEqual([{ note: `restored from ${id}, with a loss: ${sentence}` }])
})

test('damage that appears after the request fails the new cluster', async () => {
  await adopt()
  const made = await platform.call('POST', `/v1/postgres/${id}/undelete`, { body: {} })
  const damage = { position: parseLsn('0/3000200'), recorded, reason: 'WAL segment 3 was changed' }
  platform.fake.archiveTail = { end: damage.position, newestCommit: undefined, damage }
  await until(async () => {
    await workOnce()
    return (await platform.sql(`select 1 from cluster where state = 'failed'`)).length === 1
  })
  const { body } = await platform.call('GET', `/v1/postgres/${made.body.data.id}`)
  expect(body.data.failure).toContain('the write-ahead log is damaged: it is intact up to 0/3000200')
})
