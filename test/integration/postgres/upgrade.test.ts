import { beforeEach, describe, expect, test } from 'vitest'
import { breakable } from '../../support/breakable.ts'
import { type CallOptions, usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake } = platform

let source: string

/** A ready cluster of PostgreSQL 16.1 with a backup. */
beforeEach(async () => {
  source = await makeCluster('shop')
})

async function makeCluster(name: string): Promise<string> {
  const body = { org_slug: 'personal', plan: 'basic', name, pg_major_version: '16' }
  const { id } = (await platform.call('POST', '/v1/postgres', { body })).body.data
  await turnUntil(() => platform.sql(`select 1 from backup where cluster_id = $1 and state = 'completed'`, [id]))
  // The window is open from an hour ago to a minute ago.
  await platform.sql(`update backup set stopped_at = now() - interval '1 hour' where cluster_id = $1`, [id])
  await platform.sql(
    `update stretch set latest_at = now() - interval '1 minute', latest_lsn = '0/3000000' where cluster_id = $1`,
    [id],
  )
  return id
}

async function turnUntil(condition: () => Promise<unknown[]>, only = 'true', turns = 200): Promise<void> {
  for (let i = 0; i < turns; i++) {
    if ((await condition()).length > 0) return
    await turn(only)
  }
  throw new Error(
    `not so after ${turns} turns: ${JSON.stringify(await platform.sql('select kind, note, last_error from work'))}`,
  )
}

async function turn(only = 'true'): Promise<void> {
  await platform.sql(
    `update work set leased_until = null,
       run_at = case when ${only} then now() - random() * interval '1 second' else 'infinity' end`,
  )
  await platform.turn().catch(() => undefined)
}

const upgrade = (body: unknown = {}, id = source, options: CallOptions = {}) =>
  platform.call('POST', `/v1/postgres/${id}/upgrade`, { body, ...options })
const cancel = (id = source, options: CallOptions = {}) =>
  platform.call('DELETE', `/v1/postgres/${id}/upgrade`, options)
const show = async (id = source) => (await platform.call('GET', `/v1/postgres/${id}`)).body.data
const inPhase = (phase: string, id: string) => () =>
  platform.sql('select 1 from upgrade where cluster_id = $1 and phase = $2', [id, phase])
const untilPhase = (phase: string, id = source) => turnUntil(inPhase(phase, id), `resource_id = '${id}'`)
const inAnHour = () => new Date(Date.now() + 3_600_000).toISOString()

/** Checks the cluster fully once and returns what the API shows. */
async function look(id = source) {
  await platform.sql('update cluster set quota_checked_at = null where id = $1', [id])
  await turn(`resource_id = '${id}'`)
  return show(id)
}

/** Puts an import of the cluster into this state. */
async function setImport(state: string, id = source) {
  await platform.sql(
    `insert into import (id, cluster_id, state, source_name, database, jobs, live) values ($1, $1, $2, 'x', 'berth', 1, true)
     on conflict (id) do update set state = $2`,
    [id, state],
  )
}

describe('a maintenance window', () => {
  const set = (window: unknown, id = source, options: CallOptions = {}) =>
    platform.call('PATCH', `/v1/postgres/${id}`, { body: { maintenance_window: window }, ...options })
  /** A window that began half an hour ago, or will begin in a day. */
  const windowAt = (minutes: number) => {
    const at = new Date(Date.now() + minutes * 60_000)
    return `${at.toUTCString().slice(0, 3).toLowerCase()} ${at.toISOString().slice(11, 16)}`
  }

  test('is shown, kept in the repository, inherited by a restore, and cleared', async () => {
    expect(await show()).toMatchObject({ maintenance_window: null })
    expect(await set('sun 03:00')).toMatchObject({ status: 200, body: { data: { maintenance_window: 'sun 03:00' } } })
    await turnUntil(async () => (fake.descriptions.get(source)?.maintenanceWindow === 'sun 03:00' ? [1] : []))
    const restored = await platform.call('POST', `/v1/postgres/${source}/restore`, {
      body: { pitr_time: new Date(Date.now() - 1_800_000).toISOString() },
    })
    expect(restored.body.data).toMatchObject({ maintenance_window: 'sun 03:00' })
    expect((await set(null)).body.data.maintenance_window).toBeNull()
    for (const wrong of ['', 'sunday 03:00', 'sun 24:00', 'sun 03:00 ', "sun 03:00'; --"])
      expect(await set(wrong)).toMatchObject({ status: 422, body: { error: expect.stringContaining('sun 03:00') } })
    expect((await set(3)).status).toBe(422)
    expect((await show()).maintenance_window).toBeNull()
  })

  test('upgrades an outdated cluster in it, and not before', async () => {
    fake.installedMinor = 10
    await set(windowAt(24 * 60))
    for (let i = 0; i < 5; i++) await look()
    expect((await show()).upgrade).toBeUndefined()
    await set(windowAt(-30))
    await untilPhase('done')
    expect(fake.versions.get(source)).toBe('16.10')
    expect((await look()).upgrade).toMatchObject({ kind: 'minor', phase: 'done', from: '16.1', to: '16.10' })
    const before = await platform.sql('select created_at from upgrade')
    for (let i = 0; i < 5; i++) await look()
    expect(await platform.sql('select created_at from upgrade')).toEqual(before)
  })

  test('does not try a version again that did not start', async () => {
    fake.installedMinor = 10
    await set(windowAt(-30))
    await look()
    await platform.sql(
      `insert into upgrade (cluster_id, kind, phase, from_version, to_version) values ($1, 'minor', 'failed', '16.1', '16.10')`,
      [source],
    )
    for (let i = 0; i < 5; i++) await look()
    expect((await show()).upgrade.phase).toBe('failed')
    fake.installedMinor = 11
    await turnUntil(async () => {
      await platform.sql('update cluster set quota_checked_at = null')
      return inPhase('done', source)()
    }, `resource_id = '${source}'`)
    expect(fake.versions.get(source)).toBe('16.11')
  })
})

describe('an import', () => {
  test('into the cluster refuses upgrades, and one that is due waits for its end', async () => {
    fake.installedMinor = 10
    expect((await upgrade({ at: inAnHour() })).status).toBe(202)
    await setImport('copying')
    const refusal = { status: 409, body: { error: expect.stringContaining('an import is in progress') } }
    expect(await upgrade()).toMatchObject(refusal)
    expect(await upgrade({ pg_major_version: '17' })).toMatchObject(refusal)
    await platform.sql(`update upgrade set planned_at = now() - interval '1 second'`)
    for (let i = 0; i < 5; i++) await look()
    expect((await show()).upgrade.phase).toBe('planned')
    await setImport('done')
    await untilPhase('done')
  })

  test('is refused while the cluster is restarted with other programs', async () => {
    await platform.sql(
      `insert into upgrade (cluster_id, kind, phase, from_version, to_version) values ($1, 'minor', 'restarting', '16.1', '16.10')`,
      [source],
    )
    const body = { url: 'postgresql://u:p@db.example.com/shop' }
    expect(await platform.call('POST', `/v1/postgres/${source}/import`, { body })).toMatchObject({
      status: 409,
      body: { error: 'an upgrade is in progress' },
    })
    await platform.sql('delete from upgrade')
    expect((await platform.call('POST', `/v1/postgres/${source}/import`, { body })).status).toBe(202)
  })
})

describe('a minor upgrade', () => {
  test('is refused if nothing newer is installed', async () => {
    expect(await show()).toMatchObject({ pg_version: '16.1', pg_newest_version: '16.1' })
    expect(await upgrade()).toMatchObject({
      status: 409,
      body: { error: 'PostgreSQL 16.1, which the cluster runs, is the newest installed version' },
    })
    expect((await show()).upgrade).toBeUndefined()
  })

  test('shows in the health that it is possible', async () => {
    expect((await look()).health).toMatchObject({ status: 'ok', reason: '' })
    fake.installedMinor = 10
    const seen = await look()
    expect(seen).toMatchObject({ pg_version: '16.1', pg_newest_version: '16.10' })
    expect(seen.health).toMatchObject({
      status: 'ok',
      reason: `PostgreSQL 16.1 is running and 16.10 is installed: run berth postgres upgrade ${source}`,
    })
  })

  test('restarts the cluster with the newest installed version', async () => {
    fake.installedMinor = 10
    expect(await upgrade()).toMatchObject({
      status: 202,
      body: { data: { id: source, status: 'ready', upgrade: { kind: 'minor', phase: 'planned', planned_at: null } } },
    })
    await untilPhase('done')
    expect(fake.versions.get(source)).toBe('16.10')
    const seen = await look()
    expect(seen).toMatchObject({
      status: 'ready',
      pg_version: '16.10',
      health: { status: 'ok', reason: '' },
      upgrade: { phase: 'done', from: '16.1', to: '16.10', error: null, finished_at: expect.any(String) },
    })
    expect((await upgrade()).status).toBe(409)
    expect((await show()).upgrade.phase).toBe('done')
  })

  test('can be planned, planned anew and cancelled', async () => {
    fake.installedMinor = 2
    const at = inAnHour()
    expect(await upgrade({ at })).toMatchObject({ status: 202, body: { data: { upgrade: { phase: 'planned' } } } })
    expect(Date.parse((await show()).upgrade.planned_at)).toBe(Date.parse(at))
    for (let i = 0; i < 5; i++) await look()
    expect(fake.versions.get(source)).toBe('16.1')
    expect(await cancel()).toMatchObject({ status: 204 })
    expect((await show()).upgrade).toBeUndefined()
    expect(await cancel()).toMatchObject({ status: 404, body: { error: 'No upgrade is planned' } })

    expect((await upgrade({ at: inAnHour() })).status).toBe(202)
    expect((await upgrade({ at })).status).toBe(202)
    await platform.sql(`update upgrade set planned_at = now() - interval '1 second'`)
    await untilPhase('done')
    expect(fake.versions.get(source)).toBe('16.2')
  })

  test('cannot be cancelled or repeated once it has begun', async () => {
    fake.installedMinor = 2
    fake.brokenVersions.add('16.2')
    await upgrade()
    await untilPhase('restarting')
    const refused = { status: 409, body: { error: 'the upgrade has begun and cannot be cancelled' } }
    expect(await cancel()).toMatchObject(refused)
    expect(await upgrade()).toMatchObject({ status: 409 })
  })

  test('goes back if the server does not start with the new version', async () => {
    fake.installedMinor = 2
    fake.brokenVersions.add('16.2')
    await upgrade()
    await turnUntil(
      () => platform.sql('select 1 from upgrade where restarted_at is not null'),
      `resource_id = '${source}'`,
    )
    expect(await show()).toMatchObject({ health: { status: 'down' }, upgrade: { phase: 'restarting' } })
    // It is given some time.
    for (let i = 0; i < 5; i++) await turn(`resource_id = '${source}'`)
    expect(await show()).toMatchObject({ upgrade: { phase: 'restarting' } })
    await platform.sql(`update upgrade set restarted_at = now() - interval '1 minute'`)
    await untilPhase('failed')
    expect(fake.versions.get(source)).toBe('16.1')
    expect(await look()).toMatchObject({
      status: 'ready',
      pg_version: '16.1',
      health: { status: 'ok', reason: expect.stringContaining('16.2 is installed') },
      upgrade: {
        phase: 'failed',
        error: expect.stringContaining('PostgreSQL 16.2 does not start, so the cluster runs 16.1 again'),
      },
    })
  })

  test('fails if the installation is gone or older when it begins', async () => {
    fake.installedMinor = 2
    await upgrade({ at: inAnHour() })
    await platform.sql(`update upgrade set planned_at = now()`)
    fake.installedMinor = 1
    await untilPhase('failed')
    expect((await show()).upgrade.error).toBe('PostgreSQL 16.1, which is installed, is not newer than 16.1')

    fake.installedMinor = 2
    await upgrade()
    fake.toolchainProblem = 'PostgreSQL 16 was not found'
    await untilPhase('failed')
    expect((await show()).upgrade.error).toBe('PostgreSQL 16 was not found')
    expect(await look()).toMatchObject({ health: { status: 'ok' } })
  })

  test('restarts a server whose programs were replaced in place', async () => {
    fake.installedMinor = 2
    await platform.sql(`update cluster set toolchain = jsonb_set(toolchain, '{bin}', '"/bin-16.2"')`)
    await upgrade()
    await untilPhase('done')
    expect(fake.versions.get(source)).toBe('16.2')
  })

  test.each([
    [{ at: 'tomorrow' }, 'at must be an RFC 3339 timestamp with a UTC offset'],
    [{ at: '2026-01-01T00:00:00Z' }, 'at must be in the future; without it the upgrade begins at once'],
    [{ name: 'other' }, 'name needs pg_major_version: a minor upgrade creates no cluster'],
    [{ at: 5 }, expect.any(String)],
  ])('is refused for %j', async (body, error) => {
    fake.installedMinor = 2
    expect(await upgrade(body)).toMatchObject({ status: 422, body: { error } })
  })

  test('ends the same, whichever call or statement fails', async () => {
    await platform.sql(`delete from work where resource_id <> $1`, [source])
    const attempt = async (minor: number, nthCall: number, nthStatement: number) => {
      fake.installedMinor = minor
      expect((await upgrade()).status).toBe(202)
      fake.breakCall(nthCall)
      const broken = breakable(platform.database.db, nthStatement)
      platform.loopDb = broken.db
      await untilPhase('done')
      platform.loopDb = undefined
      expect([nthCall, nthStatement, fake.versions.get(source)]).toEqual([nthCall, nthStatement, `16.${minor}`])
      return { calls: fake.calls, statements: broken.count() }
    }
    const { calls, statements } = await attempt(2, 0, 0)
    expect(calls).toBeGreaterThan(4)
    let minor = 3
    for (let nth = 1; nth <= calls; nth++) await attempt(minor++, nth, 0)
    for (let nth = 1; nth <= statements; nth++) await attempt(minor++, 0, nth)
  }, 60_000)
})

describe('a major upgrade', () => {
  const started = async (extra: object = {}) => {
    const answer = await upgrade({ pg_major_version: '17', ...extra })
    expect(answer, JSON.stringify(answer.body)).toMatchObject({ status: 202 })
    return answer.body.data
  }
  const stateIs = (id: string, state: string) =>
    turnUntil(() => platform.sql('select 1 from cluster where id = $1 and state = $2', [id, state]))

  test('creates a cluster of the new version and leaves the source alone', async () => {
    const before = await show()
    const made = await started({ name: 'newer' })
    expect(made).toMatchObject({
      name: 'newer',
      status: 'creating',
      pg_major_version: '16',
      restore: { source_cluster_id: source },
      upgrade: { kind: 'major', phase: 'restoring', from: '16.1', to: '17' },
    })
    await stateIs(made.id, 'ready')
    expect(await show(made.id)).toMatchObject({
      status: 'ready',
      pg_major_version: '17',
      pg_version: '17.1',
      upgrade: { phase: 'done', from: '16.1', to: '17.1', error: null },
      recovery_window: null,
    })
    expect(fake.upgradedTo.get(made.id)).toBe('17')
    expect(fake.versions.get(made.id)).toBe('17.1')
    const archives = await platform.sql('select epoch, base from archive where cluster_id = $1', [made.id])
    expect(archives).toEqual([{ epoch: 1, base: null }])
    expect(await platform.sql('select username from cluster_user where cluster_id = $1', [made.id])).toHaveLength(1)
    expect(await show()).toMatchObject({
      status: 'ready',
      pg_version: '16.1',
      endpoints: before.endpoints,
    })
    await turnUntil(() => platform.sql(`select 1 from backup where cluster_id = $1 and state = 'completed'`, [made.id]))
    expect(await platform.sql('select 1 from pin')).toEqual([])
  })

  test('names the new cluster after its source', async () => {
    expect((await started()).name).toBe('shop-pg17')
    expect(await upgrade({ pg_major_version: '17' })).toMatchObject({
      status: 422,
      body: { error: 'name shop-pg17 has already been taken' },
    })
  })

  test('shows the stage of its job', async () => {
    fake.upgradeSeen = { is: 'running', stage: 'analyzing' }
    const { id } = await started()
    await untilPhase('analyzing', id)
    expect(await show(id)).toMatchObject({ status: 'initializing', upgrade: { phase: 'analyzing', to: '17.1' } })
    // It outlasts the deadline of its state while the job runs, but not for ever.
    await platform.sql(`update cluster set progress_at = now() - interval '1 minute' where id = $1`, [id])
    await turn(`resource_id = '${id}'`)
    const [{ fresh }] = await platform.sql(
      `select progress_at > now() - interval '30 seconds' as fresh from cluster where id = $1`,
      [id],
    )
    expect(fresh).toBe(true)
    await platform.sql(`update upgrade set started_at = now() - interval '13 hours'`)
    await platform.sql(`update cluster set progress_at = now() - interval '1 hour' where id = $1`, [id])
    await stateIs(id, 'failed')
    expect((await show(id)).failure).toContain('no progress in 5 minutes')
    expect(fake.upgradeJobs.has(id)).toBe(true)
    await turn(`resource_id = '${id}'`)
    expect(fake.upgradeJobs.has(id)).toBe(false)
  })

  test('fails with the reason of pg_upgrade', async () => {
    fake.upgradeSeen = { is: 'failed', reason: 'pg_upgrade: Your installation contains a reg* data type' }
    const { id } = await started()
    await stateIs(id, 'failed')
    const reason = 'pg_upgrade: Your installation contains a reg* data type'
    expect(await show(id)).toMatchObject({
      status: 'failed',
      failure: reason,
      upgrade: { phase: 'failed', error: reason },
    })
    expect(await show()).toMatchObject({ status: 'ready' })
    await platform.call('DELETE', `/v1/postgres/${id}`)
    await stateIs(id, 'deleted')
    expect(fake.upgradeJobs.has(id)).toBe(false)
  })

  test('fails if the new version is not installed', async () => {
    const { id } = await started()
    await turnUntil(() => platform.sql(`select 1 from cluster where id = $1 and state = 'initializing'`, [id]))
    fake.toolchainProblem = 'PostgreSQL 17 was not found'
    await stateIs(id, 'failed')
    expect((await show(id)).failure).toBe('PostgreSQL 17 was not found')
  })

  test('fails like any restore if the backup is damaged', async () => {
    fake.copyProblem = 'no space left'
    const { id } = await started()
    await stateIs(id, 'failed')
    expect(await show(id)).toMatchObject({ failure: 'no space left', upgrade: { phase: 'failed' } })
  })

  test.each([
    [{ pg_major_version: '16' }, 'pg_major_version: PostgreSQL 16, which the cluster runs, can be upgraded to 17'],
    [{ pg_major_version: '18' }, 'pg_major_version: PostgreSQL 16, which the cluster runs, can be upgraded to 17'],
    [{ pg_major_version: '17', at: '2027-01-01T00:00:00Z' }, expect.stringContaining('a major upgrade begins at once')],
    [{ pg_major_version: '17', name: 'No!' }, expect.stringContaining('name must be')],
    [{ pg_major_version: 17 }, expect.any(String)],
  ])('is refused for %j', async (body, error) => {
    expect(await upgrade(body)).toMatchObject({ status: 422, body: { error } })
  })

  test('is refused for a cluster that has no backup, no PostGIS there, or runs the newest version', async () => {
    await platform.sql(`update backup set state = 'failed'`)
    expect(await upgrade({ pg_major_version: '17' })).toMatchObject({
      status: 422,
      body: { error: 'a major upgrade is unavailable: no backup has completed yet' },
    })
    await platform.sql('update cluster set postgis_enabled = true')
    expect(await upgrade({ pg_major_version: '17' })).toMatchObject({
      status: 422,
      body: { error: expect.stringContaining('has no PostGIS') },
    })
    await platform.sql(`update cluster set pg_major = '17'`)
    expect(await upgrade({ pg_major_version: '17' })).toMatchObject({
      status: 422,
      body: { error: expect.stringContaining('is the newest major version') },
    })
  })

  test('ends the same, whichever call fails', async () => {
    await platform.setQuotas({ clusters: 'unlimited' })
    const attempt = async (name: string, nth: number) => {
      const { id } = await started({ name })
      await platform.sql('delete from work where resource_id <> $1', [id])
      fake.breakCall(nth)
      await stateIs(id, 'ready')
      expect([nth, (await show(id)).pg_version]).toEqual([nth, '17.1'])
      return fake.calls
    }
    const calls = await attempt('count', 0)
    expect(calls).toBeGreaterThan(20)
    for (let nth = 1; nth <= calls; nth++) await attempt(`n${nth}`, nth)
  }, 120_000)
})

test('strangers and readers cannot upgrade', async () => {
  fake.installedMinor = 2
  await platform.createOrg('others')
  const stranger = { token: await platform.createToken('org', 'others') }
  const reader = { token: await platform.createToken('read', 'personal') }
  for (const body of [{}, { pg_major_version: '17' }]) {
    expect((await upgrade(body, source, stranger)).status).toBe(404)
    expect((await upgrade(body, source, reader)).status).toBe(401)
  }
  expect((await cancel(source, stranger)).status).toBe(404)
  expect((await cancel(source, reader)).status).toBe(401)
  expect(await platform.sql('select 1 from upgrade')).toEqual([])
})
