import { beforeEach, describe, expect, test } from 'vitest'
import { isDrillDue } from '../../../src/model/postgres/drill.ts'
import { breakable } from '../../support/breakable.ts'
import { type CallOptions, usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()
const { fake } = platform

const samples = { '2026-11-01T10:30:00Z': '0/2100000', '2026-11-01T11:00:00Z': '0/2200000' }
const edge = '2026-11-01T12:00:00Z'
const moments: Record<string, string> = { ...samples, [edge]: '0/3000000' }

let source: string

async function startWithSource(): Promise<void> {
  source = await makeSource('shop')
}

/** Makes a ready cluster with a backup, a past recovery window from 10:00 to 12:00, and samples in and before it. */
async function makeSource(name: string, extra: object = {}): Promise<string> {
  const made = await platform.call('POST', '/v1/postgres', {
    body: { org_slug: 'personal', plan: 'basic', name, ...extra },
  })
  expect(made.status, JSON.stringify(made.body)).toBe(201)
  const { id } = made.body.data
  const isBackedUp = () => platform.sql(`select 1 from backup where cluster_id = $1 and state = 'completed'`, [id])
  for (let i = 0; i < 60 && (await isBackedUp()).length === 0; i++) await turnAll()
  await platform.sql(`update backup set stopped_at = '2026-11-01T10:00:00Z' where cluster_id = $1`, [id])
  await platform.sql(`update stretch set latest_at = $2, latest_lsn = $3 where cluster_id = $1`, [
    id,
    edge,
    moments[edge],
  ])
  for (const [at, lsn] of Object.entries({ '2026-11-01T09:00:00Z': '0/1000000', ...samples })) {
    await platform.sql(
      `insert into sample (stretch_id, at, lsn, begin_lsn)
       select id, $2, $3::pg_lsn, $3::pg_lsn from stretch where cluster_id = $1`,
      [id, at, lsn],
    )
  }
  return id
}

/** Runs one turn of any waiting resource. */
async function turnAll(only = 'true') {
  await platform.sql(
    `update work set leased_until = null,
       run_at = case when ${only} then now() - random() * interval '1 second' else 'infinity' end`,
  )
  return platform.turn().catch(() => undefined)
}

const ofDrills = `kind = 'drill' or resource_id in (select id from cluster where scratch or state = 'deleting')`

/** Runs the loop for drills and their clusters until the condition holds. */
async function turnUntil(condition: string, values: unknown[] = []): Promise<void> {
  for (let i = 0; i < 300; i++) {
    if ((await platform.sql(condition, values)).length > 0) return
    await turnAll(ofDrills)
  }
  throw new Error(`not so after 300 turns: ${condition} ${JSON.stringify(await platform.sql('select * from work'))}`)
}

const untilDone = () => turnUntil(`select 1 where not exists (select 1 from drill where state <> 'done')`)
const untilState = (state: string) => turnUntil('select 1 from drill where state = $1', [state])

const ask = (body: unknown = {}, id = source, options: CallOptions = {}) =>
  platform.call('POST', `/v1/postgres/${id}/drills`, { body, ...options })
const list = async (id = source) => (await platform.call('GET', `/v1/postgres/${id}/drills`)).body.data
const show = async (id = source) => (await platform.call('GET', `/v1/postgres/${id}`)).body.data

async function drill(body: unknown = {}) {
  expect(await ask(body)).toMatchObject({ status: 202, body: '' })
  await untilDone()
  return (await list())[0]
}

/** Checks the source once and returns its health. */
async function look() {
  await turnAll(`resource_id = '${source}'`)
  return show()
}

async function expectNothingLeft(): Promise<void> {
  expect([...fake.clusters.keys()]).toEqual([source])
  expect([...fake.limits]).toEqual([source])
  expect([...fake.poolers]).toEqual([source])
  expect([...fake.drillJobs]).toEqual([])
  expect(await platform.sql('select id from cluster')).toEqual([{ id: source }])
  expect(await platform.sql('select distinct cluster_id as id from cluster_port')).toEqual([{ id: source }])
  expect(await platform.sql('select 1 from restore union all select 1 from pin')).toEqual([])
  expect(await platform.sql('select resource_id as id from work')).toEqual([{ id: source }])
}

async function scratchOf(): Promise<string> {
  return (await platform.sql('select scratch_id as id from drill order by created_at desc limit 1'))[0].id
}

describe('a drill', () => {
  beforeEach(startWithSource)

  test('restores, checks, stores the answer, cleans up and reports', async () => {
    const seen = await drill({ drill_query: 'select count(*) from orders' })
    expect(seen).toEqual({
      id: expect.stringMatching(/^[a-z0-9]{16}$/),
      status: 'done',
      target: expect.any(String),
      created_at: expect.any(String),
      finished_at: expect.any(String),
      seconds: expect.any(Number),
      result: 'ok',
      answer: 'answer to select count(*) from orders',
    })
    expect(Object.keys(moments)).toContain(seen.target)
    expect((await show()).last_drill).toEqual({
      at: seen.finished_at,
      target: seen.target,
      seconds: seen.seconds,
      result: 'ok',
      answer: seen.answer,
    })
    const events = await platform.sql(`select event from event where kind = 'drill' order by id`)
    expect(events.map(({ event }) => event)).toEqual(['started', 'restored', 'passed', 'cleaned'])
    expect(fake.created).toBe(2)
    await expectNothingLeft()
    expect((await look()).health).toMatchObject({ status: 'ok' })
  })

  test('runs also when the organization has as many clusters as its quota allows', async () => {
    await platform.setQuotas({ clusters: 1, disk_gb: 10, database_users: 1 })
    expect((await drill()).result).toBe('ok')
    await expectNothingLeft()
    const { body } = await platform.call('GET', '/v1/orgs/personal/quotas')
    const used = (name: string) => body.quotas.find((quota: { name: string }) => quota.name === name).used
    expect([used('clusters'), used('disk_gb'), used('database_users')]).toEqual([1, 10, 1])
  })

  test('restores to a recorded sample or the end of the window, and replays no further', async () => {
    for (let i = 0; i < 6; i++) {
      await ask()
      await untilState('restoring')
      const [{ pitr_time, plan, purpose }] = await platform.sql(
        `select to_char(pitr_time at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as pitr_time, plan, purpose from restore`,
      )
      expect(purpose).toBe('drill')
      expect((await list())[0].target).toBe(pitr_time)
      expect(plan.pieces.at(-1).end).toBe(moments[pitr_time])
      expect(plan).not.toHaveProperty('search')
      expect(await platform.sql('select label <> $1 as named from pin', [''])).toEqual([{ named: true }])
      await untilDone()
    }
  })

  test('hides the scratch cluster and does not start a pooler for it', async () => {
    await ask()
    await untilState('checking')
    const scratch = await scratchOf()
    expect((await platform.call('GET', `/v1/postgres/${scratch}`)).status).toBe(404)
    expect((await platform.call('DELETE', `/v1/postgres/${scratch}`)).status).toBe(404)
    expect((await ask({}, scratch)).status).toBe(404)
    const listed = await platform.call('GET', '/v1/postgres?org_slug=personal&include_deleted=true')
    expect(listed.body.data.map(({ id }: { id: string }) => id)).toEqual([source])
    expect([...fake.poolers]).toEqual([source])
    expect(await platform.sql('select cluster_id from archive')).toEqual([{ cluster_id: source }])
    expect(await platform.sql('select synchronous_archive from cluster where scratch')).toEqual([
      { synchronous_archive: false },
    ])
  })

  test('reports its progress', async () => {
    await ask()
    await untilState('checking')
    await turnAll(`kind = 'drill'`)
    expect((await list())[0]).toMatchObject({ status: 'checking', progress: 'reading every page', result: null })
    expect(await show()).not.toHaveProperty('last_drill')
  })

  test.each([
    ['copyProblem', 'backup 20261101-095900F is damaged: checksum mismatch for file "base/1/1259"'],
    ['pagesProblem', 'the check of every page failed: checksum verification failed in file "base/1/1259"'],
    ['contentsProblem', 'the drill query failed: ERROR:  relation "orders" does not exist'],
  ] as const)('that finds a %s is reported until another drill passes', async (problem, reason) => {
    fake[problem] = reason
    expect(await drill({ drill_query: 'select 1' })).toMatchObject({ status: 'done', result: `failed: ${reason}` })
    await expectNothingLeft()
    const told = { status: 'degraded', reason: `the last restore drill failed: ${reason}` }
    expect((await look()).health).toMatchObject(told)
    expect((await look()).health).toMatchObject(told)
    expect((await show()).last_drill).toMatchObject({ result: `failed: ${reason}` })
    fake[problem] = undefined
    expect(await drill()).toMatchObject({ result: 'ok' })
    expect((await look()).health).toMatchObject({ status: 'ok', reason: '' })
    expect(await list()).toMatchObject([{ result: 'ok' }, { result: `failed: ${reason}` }])
  })

  test('that found a problem neither causes repeated disk measurements nor hides a worse problem', async () => {
    fake.copyProblem = 'damaged'
    await drill()
    await look()
    const { looked } = (await platform.sql('select quota_checked_at as looked from cluster'))[0]
    await look()
    expect((await platform.sql('select quota_checked_at as looked from cluster'))[0].looked).toEqual(looked)
    fake.usedBytes = 10 * 1024 ** 3
    await platform.sql('update cluster set quota_checked_at = null')
    expect((await look()).health.status).toBe('read_only')
    expect((await look()).health.status).toBe('read_only')
  })

  test('that hangs fails after its deadline, and another one can start', async () => {
    await ask()
    await untilState('checking')
    await platform.sql(`update drill set state_since = now() - interval '13 hours'`)
    await untilDone()
    expect((await list())[0].result).toMatch(/^failed: no progress in 720 minutes while checking/)
    await expectNothingLeft()
    expect(await drill()).toMatchObject({ result: 'ok' })
  })

  test.each(['queued', 'restoring', 'checking', 'cleaning'])(
    'ends by itself if its cluster is deleted while it is %s',
    async (state) => {
      await ask()
      await untilState(state)
      expect((await platform.call('DELETE', `/v1/postgres/${source}`)).status).toBe(202)
      await untilDone()
      await turnUntil(`select 1 from cluster where id = $1 and state = 'deleted'`, [source])
      expect([...fake.clusters.keys()]).toEqual([])
      expect([...fake.drillJobs]).toEqual([])
      expect(await platform.sql('select id, state from cluster')).toEqual([{ id: source, state: 'deleted' }])
      expect(await platform.sql('select 1 from cluster_port union all select 1 from pin')).toEqual([])
    },
  )

  test('waits for another drill on this host', async () => {
    const other = await makeSource('other')
    await ask()
    await untilState('restoring')
    expect((await ask({}, other)).status).toBe(202)
    await turnAll(`kind = 'drill' and resource_id in (select id from drill where state = 'queued')`)
    expect((await list(other))[0]).toMatchObject({
      status: 'queued',
      progress: 'waiting for another drill on this machine',
    })
    await expect(platform.sql(`update drill set state = 'checking'`)).rejects.toThrow(/drill_running/)
    await untilDone()
    expect((await list(other))[0]).toMatchObject({ result: 'ok' })
  })

  test('waits until there is enough disk space', async () => {
    fake.freeBytes = 500_000_000
    await ask()
    for (let i = 0; i < 3; i++) await turnAll(ofDrills)
    expect((await list())[0]).toMatchObject({
      status: 'queued',
      progress: expect.stringMatching(/^waiting until \d+ MB of the disk are free$/),
    })
    fake.freeBytes = 10 ** 12
    await untilDone()
    expect((await list())[0]).toMatchObject({ result: 'ok' })
  })

  test('fails with a reason if there is no recovery window', async () => {
    await ask()
    await platform.sql(`update backup set damage = 'flipped'`)
    await untilDone()
    expect((await list())[0]).toMatchObject({ target: null, result: 'failed: there is no recovery window any more' })
    await expectNothingLeft()
  })
})

describe('the drill query', () => {
  beforeEach(startWithSource)

  test('is stored from the creation on until it is removed', async () => {
    source = await makeSource('asked', { drill_query: 'select 1' })
    await platform.sql(`delete from work where resource_id <> $1`, [source])
    expect((await drill()).answer).toBe('answer to select 1')
    expect((await drill({ drill_query: 'select 2' })).answer).toBe('answer to select 2')
    expect((await drill()).answer).toBe('answer to select 2')
    expect(await drill({ drill_query: null })).not.toHaveProperty('answer')
    await drill({ drill_query: 'select 3' })
    expect(await drill({ drill_query: ' ' })).not.toHaveProperty('answer')
  })

  test('does not run for times before it was set, except for the newest one', async () => {
    for (let i = 0; i < 6; i++) expect((await drill({ drill_query: 'select 1' })).target).toBe(edge)
    await platform.sql(`update cluster set drill_query_at = '2026-11-01T11:00:00Z'`)
    for (let i = 0; i < 6; i++) expect(['2026-11-01T11:00:00Z', edge]).toContain((await drill()).target)
  })

  test('counts as newly set only if it changes', async () => {
    const setAt = async (drill_query: string) => {
      await drill({ drill_query })
      return (await platform.sql('select drill_query_at::text as at from cluster'))[0].at
    }
    const first = await setAt('select 1')
    expect(await setAt('select 1')).toBe(first)
    expect(await setAt('select 2')).not.toBe(first)
  })

  test('is stored in the repository', async () => {
    await ask({ drill_query: 'select 1' })
    await until(async () => {
      await look()
      return fake.descriptions.get(source)?.drillQuery === 'select 1'
    })
    expect(await platform.sql('select 1 from cluster where undescribed_since is not null')).toEqual([])
  })

  test.each([
    ['a number', 5],
    ['a list', ['select 1']],
    ['too long', 'x'.repeat(10_001)],
    ['not text', 'select \u0000'],
  ])('is refused when it is %s', async (_, drill_query) => {
    const refused = { status: 422, body: { error: expect.stringMatching(/^drill_query must be /) } }
    expect(await ask({ drill_query })).toMatchObject(refused)
    const create = { org_slug: 'personal', plan: 'basic', drill_query }
    expect(await platform.call('POST', '/v1/postgres', { body: create })).toMatchObject(refused)
    expect(await list()).toEqual([])
  })

  test('may have ten thousand characters', async () => {
    expect((await ask({ drill_query: 'ä'.repeat(10_000) })).status).toBe(202)
  })
})

describe('a request for a drill answers', () => {
  beforeEach(startWithSource)

  test('409 while another drill runs', async () => {
    const replies = await Promise.all(Array.from({ length: 10 }, () => ask()))
    expect(replies.map(({ status }) => status).sort()).toEqual([202, ...Array(9).fill(409)])
    expect(await ask({ drill_query: 'select 1' })).toMatchObject({
      status: 409,
      body: { error: 'drill already in progress' },
    })
    expect(await platform.sql('select drill_query from cluster')).toEqual([{ drill_query: null }])
  })

  test('422 unless the cluster is ready and has a recovery window', async () => {
    await platform.sql(`update backup set state = 'failed'`)
    expect(await ask()).toMatchObject({
      status: 422,
      body: { error: 'a drill is unavailable: no backup has completed yet' },
    })
    await platform.sql(`update cluster set state = 'initializing'`)
    expect(await ask()).toMatchObject({
      status: 422,
      body: { error: 'Cluster is initializing; a drill can run once it is ready' },
    })
  })

  test('401 without a token or with a read-only one, which may list drills', async () => {
    const token = await platform.createToken('read', 'personal')
    expect((await ask({}, source, { token: null })).status).toBe(401)
    expect(await ask({}, source, { token })).toMatchObject({ status: 401, body: { error: 'this token may only read' } })
    const path = `/v1/postgres/${source}/drills`
    expect((await platform.call('GET', path, { token: null })).status).toBe(401)
    expect(await platform.call('GET', path, { token })).toMatchObject({ status: 200, body: { data: [] } })
  })

  test('404 for an unknown or foreign cluster', async () => {
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    for (const id of [source, 'aaaaaaaaaaaaaaaa', 'x', '%00']) {
      expect(await ask({}, id, { token })).toMatchObject({ status: 404, body: { error: 'Cluster not found' } })
      expect((await platform.call('GET', `/v1/postgres/${id}/drills`, { token })).status).toBe(404)
    }
  })

  test.each(['{', '[]', 'null'])('400 with the body %s', async (raw) => {
    expect((await platform.call('POST', `/v1/postgres/${source}/drills`, { raw })).status).toBe(400)
  })
})

describe('the schedule', () => {
  beforeEach(startWithSource)

  const day = 86_400
  const at = (hour: number) => new Date(Date.UTC(2026, 10, 15, hour, 59))
  const schedule = (ageSeconds: number, active = false) => ({ ageSeconds, active, result: null })

  test('waits for the night, but not longer than twice the interval', () => {
    expect(isDrillDue(schedule(day - 1), day, at(3))).toBe(false)
    for (const hour of [1, 2, 3, 4]) expect(isDrillDue(schedule(day), day, at(hour))).toBe(true)
    for (const hour of [0, 5, 12, 23]) expect(isDrillDue(schedule(2 * day - 1), day, at(hour))).toBe(false)
    expect(isDrillDue(schedule(2 * day), day, at(12))).toBe(true)
    expect(isDrillDue(schedule(9 * day, true), day, at(3))).toBe(false)
  })

  const age = (days: number) => platform.sql(`update cluster set created_at = now() - interval '1 day' * $1`, [days])

  test('starts a drill if there was none for two days since the creation or the last one', async () => {
    await look()
    expect(await list()).toEqual([])
    await age(3)
    await look()
    await look()
    expect(await list()).toHaveLength(1)
    await untilDone()
    await look()
    expect(await list()).toHaveLength(1)
    await platform.sql(`update drill set created_at = now() - interval '3 days'`)
    await look()
    expect(await list()).toMatchObject([{ status: 'queued' }, { status: 'done', result: 'ok' }])
  })

  test('does nothing when it is disabled or while there is nothing to restore', async () => {
    await age(3)
    fake.drillIntervalSeconds = null
    await look()
    expect(await list()).toEqual([])
    fake.drillIntervalSeconds = day
    await platform.sql('update stretch set latest_at = null')
    await look()
    expect(await list()).toEqual([])
    await platform.sql('update stretch set latest_at = $1', [edge])
    await look()
    expect(await list()).toHaveLength(1)
  })
})

test('a drill converges, whichever driver call or statement fails', { timeout: 300_000 }, async () => {
  await startWithSource()
  await platform.sql(`update cluster set drill_query = 'select 1'`)
  const run = async (nth: number, calls: number) => {
    const counting = breakable(platform.database.db, nth)
    expect((await ask()).status).toBe(202)
    fake.breakCall(calls === 0 ? 0 : 1 + (nth % calls))
    platform.loopDb = counting.db
    await untilDone()
    platform.loopDb = undefined
    const [last] = await list()
    expect(last, `statement ${nth}`).toMatchObject({ result: 'ok', answer: 'answer to select 1' })
    // At the end only the source is left to be checked.
    await expectNothingLeft()
    return { calls: fake.calls, statements: counting.count() }
  }
  const { calls, statements } = await run(0, 0)
  expect(calls).toBeGreaterThan(20)
  expect(statements).toBeGreaterThan(50)
  for (let nth = 1; nth <= statements; nth++) await run(nth, calls)
})
