import { beforeEach, describe, expect, test } from 'vitest'
import { UnusableArchiveError, WalFileError } from '../../../src/drivers/repository/driver.ts'
import { breakable } from '../../support/breakable.ts'
import { usePlatform } from '../../support/platform.ts'
import { until as untilSo } from '../../support/until.ts'

const platform = usePlatform()
const { fake } = platform

let id: string

/** A ready cluster with a backup and a recovery window up to now. */
beforeEach(async () => {
  fake.drillIntervalSeconds = null
  id = await createReady('shop')
})

async function createReady(name: string): Promise<string> {
  const made = await platform.call('POST', '/v1/postgres', { body: { org_slug: 'personal', plan: 'basic', name } })
  const { id: created } = made.body.data
  await until(async () => (await completed(created)).length === 1)
  await openWindow(created)
  return created
}

/** What the sampler would record. */
const openWindow = (cluster: string) =>
  platform.sql(
    `update stretch set from_lsn = '0/1000000', latest_at = now(), latest_lsn = '0/2F00000' where cluster_id = $1 and not ended`,
    [cluster],
  )
const completed = (cluster: string) =>
  platform.sql(`select * from backup where cluster_id = $1 and state = 'completed' order by label`, [cluster])

async function until(holds: () => Promise<boolean>): Promise<void> {
  await untilSo(async () => {
    if (await holds()) return true
    await platform.sql(`update work set run_at = now() - random() * interval '1 s', leased_until = null`)
    // Some tests make the statement fail with which the loop takes work.
    await platform.turn().catch(() => undefined)
    return holds()
  }, 60)
}

const show = async (cluster = id) => (await platform.call('GET', `/v1/postgres/${cluster}`)).body.data
const recover = (body: object = {}, options: object = {}) =>
  platform.call('POST', `/v1/postgres/${id}/recover`, { body, ...options })
const untilSettled = () => until(async () => ['ready', 'failed'].includes((await show()).status))
const archives = () =>
  platform.sql('select epoch, ended_at is null as current, base from archive where cluster_id = $1 order by epoch', [
    id,
  ])

describe('a recovery', () => {
  test('rebuilds a lost cluster in place and keeps its id, ports, users and passwords', async () => {
    const before = await show()
    const credentials = async () =>
      (await platform.call('GET', `/v1/postgres/${id}/users/fly-user/credentials`)).body.data
    const password = await credentials()
    fake.clusters.delete(id)
    await until(async () => (await show()).health.status === 'down')
    expect((await show()).health.reason).toBe(`its data directory is gone; run: berth postgres recover ${id}`)

    const answer = await recover()
    expect(answer).toMatchObject({ status: 202, body: { data: { id, status: 'initializing' } } })
    expect(answer.body.data.restore).toMatchObject({ source_cluster_id: id, phase: 'waiting', error: null })
    await untilSettled()
    const after = await show()
    expect(after).toMatchObject({ status: 'ready', restore: { phase: 'done', verified: true } })
    expect(after.endpoints).toEqual(before.endpoints)
    expect(await credentials()).toEqual(password)
    expect(fake.clusters.get(id)!.process.is).not.toBe('stopped')
    expect(fake.poolers.has(id) && fake.receivers.has(id)).toBe(true)
    // The window of before remains, and the new epoch depends on it until retention removes that time.
    expect(await archives()).toMatchObject([
      { epoch: 1, current: false, base: null },
      { epoch: 2, current: true, base: { pieces: [{ clusterId: id, epoch: 1, end: '0/3000000' }] } },
    ])
    expect(after.recovery_windows).toEqual([expect.objectContaining({ earliest: before.recovery_window.earliest })])
    await until(async () => (await completed(id)).some((backup) => backup.epoch === 2))
    await until(async () => (await show()).health.status === 'ok')
    expect(await platform.sql('select 1 from pin')).not.toEqual([])
  })

  test('keeps the damaged data directory until it is discarded', async () => {
    expect((await recover()).status).toBe(202)
    await untilSettled()
    expect(fake.aside.get(id)).toEqual([expect.stringMatching(/^damaged-\d{8}-\d{6}$/)])
    const discard = (options: object = {}) => platform.call('DELETE', `/v1/postgres/${id}/recover`, options)
    await platform.createOrg('acme')
    expect((await discard({ token: await platform.createToken('org', 'acme') })).status).toBe(404)
    expect((await discard({ token: await platform.createToken('read', 'personal') })).status).toBe(401)
    const [name] = fake.aside.get(id)!
    expect(await discard()).toMatchObject({ status: 200, body: { data: { discarded: [name] } } })
    expect((await discard()).body.data.discarded).toEqual([])
  })

  test('is idempotent while it runs', async () => {
    await recover()
    expect((await recover()).status).toBe(202)
    expect((await recover({ accept_loss: true })).status).toBe(202)
    expect(await platform.sql('select accept_loss from restore')).toEqual([{ accept_loss: true }])
    await untilSettled()
    expect(await platform.sql(`select 1 from event where event = 'recover'`)).toHaveLength(1)
  })

  test('of a cluster that was restored long ago is not late from the start', async () => {
    await platform.sql(`update cluster set progress_at = now() - interval '1 day' where id = $1`, [id])
    await recover()
    await untilSettled()
    expect((await show()).status).toBe('ready')
  })

  test('works twice, and of a cluster that failed after it was ready', async () => {
    await recover()
    await untilSettled()
    await openWindow(id)
    fake.copySeen = { is: 'failed', reason: 'the disk is full' }
    await recover({ accept_loss: true })
    await untilSettled()
    expect(await show()).toMatchObject({ status: 'failed', failure: 'the disk is full' })
    fake.copySeen = undefined
    // What the failed attempt left is not worth keeping.
    expect((await recover({ accept_loss: true })).status).toBe(202)
    await untilSettled()
    expect((await show()).status).toBe('ready')
    expect(fake.aside.get(id)!.length).toBeLessThanOrEqual(2)
  })

  test('of a cluster that was restored or recovered a moment ago needs no recovery window', async () => {
    const made = await platform.call('POST', `/v1/postgres/${id}/fork`, { body: { name: 'fork' } })
    const fork = made.body.data.id
    await until(async () => (await show(fork)).status === 'ready')
    // As it is before its first backup and its first sample.
    await platform.sql(`delete from backup where cluster_id = $1`, [fork])
    expect((await show(fork)).recovery_window).toBe(null)
    fake.archiveTail = { end: 0x5000000n, newestCommit: undefined }
    for (const cluster of [fork, id]) {
      fake.clusters.delete(cluster)
      for (const _ of ['the first time', 'right after it']) {
        expect(await platform.call('POST', `/v1/postgres/${cluster}/recover`, { body: {} })).toMatchObject({
          status: 202,
        })
        await until(async () => (await show(cluster)).status !== 'initializing')
        expect(await show(cluster)).toMatchObject({ status: 'ready', restore: { phase: 'done', error: null } })
      }
    }
  })

  test('uses an older backup if the newest is damaged', async () => {
    await platform.sql(
      `insert into backup (id, cluster_id, label, state, epoch, timeline, start_lsn, stop_lsn, started_at, stopped_at, finished_at, verified_at)
       values ('older', $1, '20261031-000000F', 'completed', 1, 1, '0/1000028', '0/1000100', $2, $2, $2, now())`,
      [id, '2026-10-31T00:00:00Z'],
    )
    const { label } = (await completed(id)).at(-1)!
    fake.copySeen = { is: 'failed', reason: `backup ${label} is damaged: x`, damage: 'x' }
    await recover()
    const isPlanned = `select 1 from restore where plan -> 'backup' ->> 'label' = '20261031-000000F'`
    await until(async () => (await platform.sql(isPlanned)).length === 1)
    fake.copySeen = undefined
    await untilSettled()
    expect((await show()).status).toBe('ready')
  })
})

describe('a damaged archive', () => {
  const file = '000000010000000000000002'
  const reason = `WAL segment ${file} is missing`

  test('that is known refuses a recovery, unless the loss is accepted', async () => {
    await platform.sql(
      `insert into damage (cluster_id, epoch, timeline, from_lsn, to_lsn, kind, reason)
       values ($1, 1, 1, '0/2F80000', '0/3000000', 'damaged', 'replay ended')`,
      [id],
    )
    const { latest } = (await show()).recovery_window
    const answer = await recover()
    expect(answer.status).toBe(409)
    expect(answer.body.error).toBe(
      `the archive cannot be restored up to its end: replay ended; with accept_loss the cluster is recovered up to ${latest}, and later commits are lost`,
    )
    fake.archiveTail = { end: 0x3100000n, newestCommit: undefined }
    expect((await recover({ accept_loss: true })).status).toBe(202)
    await until(async () => (await platform.sql('select plan from restore where plan is not null')).length === 1)
    const [{ plan }] = await platform.sql('select plan from restore')
    expect(plan.pieces.at(-1).end).toBe('0/2F80000')
    await untilSettled()
    expect((await show()).status).toBe('ready')
  })

  test('that is found before the data directory is moved changes nothing', async () => {
    fake.planProblem = new WalFileError('missing', file, reason)
    await platform.sql(
      `insert into sample (stretch_id, at, lsn, begin_lsn)
       select id, (select stopped_at from backup) + interval '1 s', '0/2000200', '0/2000200' from stretch where cluster_id = $1 and not ended`,
      [id],
    )
    await platform.sql(`update backup set stop_lsn = '0/2000000', start_lsn = '0/1000028'`)
    await recover()
    await untilSettled()
    const cluster = await show()
    expect(cluster.status).toBe('ready')
    expect(cluster.restore).toMatchObject({
      phase: 'failed',
      error: expect.stringContaining(`it was not recovered: ${reason}`),
    })
    expect(cluster.restore.error).toContain(`run: berth postgres recover ${id} --accept-loss`)
    expect(fake.aside.has(id)).toBe(false)
    expect(await platform.sql('select reason from damage')).toEqual([{ reason }])
    fake.planProblem = undefined
    await until(async () => fake.clusters.get(id)!.process.is === 'ready')
  })

  test('of the records about its archive changes nothing, also with an accepted loss', async () => {
    fake.planProblem = new UnusableArchiveError('the seals of its archive cannot be used')
    for (const body of [{}, { accept_loss: true }]) {
      await recover(body)
      await untilSettled()
      expect(await show()).toMatchObject({
        status: 'ready',
        restore: { phase: 'failed', error: expect.stringContaining('the seals of its archive cannot be used') },
      })
    }
    expect(fake.aside.has(id)).toBe(false)
  })

  test('whose last segment cannot be read changes nothing, and the accepted loss recovers what precedes it', async () => {
    fake.tailProblem = new WalFileError('damaged', '000000010000000000000003', 'it cannot be read: EIO')
    await platform.sql(
      `insert into sample (stretch_id, at, lsn, begin_lsn)
       select id, now(), '0/2F00000', '0/2F00000' from stretch where cluster_id = $1 and not ended`,
      [id],
    )
    await recover()
    await untilSettled()
    expect(await show()).toMatchObject({
      status: 'ready',
      restore: { phase: 'failed', error: expect.stringContaining('it cannot be read: EIO') },
    })
    expect(fake.aside.has(id)).toBe(false)
    fake.tailProblem = undefined
    expect((await recover()).status).toBe(409)
    expect((await recover({ accept_loss: true })).status).toBe(202)
    await untilSettled()
    expect(await show()).toMatchObject({ status: 'ready', restore: { phase: 'done', error: null } })
  })

  test('that is found by replay fails, and the accepted loss recovers what precedes it', async () => {
    const hole = { timeline: 1, fromLsn: '0/2F10000', toLsn: '0/3000000', kind: 'damaged', reason } as const
    fake.archiveTail = { end: 0x2f80000n, newestCommit: undefined }
    fake.recoverySeen = { is: 'failed', reason, hole }
    await platform.sql(
      `insert into sample (stretch_id, at, lsn, begin_lsn)
       select id, now(), '0/2F00000', '0/2F00000' from stretch where cluster_id = $1 and not ended`,
      [id],
    )
    await recover()
    await untilSettled()
    expect(await show()).toMatchObject({
      status: 'failed',
      failure: `${reason}; to lose what follows, run: berth postgres recover ${id} --accept-loss`,
    })
    expect((await recover()).status).toBe(409)
    await recover({ accept_loss: true })
    await until(async () => (await platform.sql('select 1 from restore where swapped')).length === 1)
    fake.recoverySeen = undefined
    await untilSettled()
    expect((await show()).status).toBe('ready')
    const [{ plan }] = await platform.sql('select plan from restore')
    expect(plan.pieces.at(-1).end).toBe('0/2F10000')
    expect(fake.aside.get(id)).toHaveLength(1)
  })

  test('starts a recovery over that accepts the loss', async () => {
    const hole = { timeline: 1, fromLsn: '0/2F10000', toLsn: '0/3000000', kind: 'damaged', reason } as const
    fake.archiveTail = { end: 0x2f80000n, newestCommit: undefined }
    fake.recoverySeen = { is: 'failed', reason, hole }
    await platform.sql(
      `insert into sample (stretch_id, at, lsn, begin_lsn)
       select id, now(), '0/2F00000', '0/2F00000' from stretch where cluster_id = $1 and not ended`,
      [id],
    )
    await recover({ accept_loss: true })
    await until(async () => (await platform.sql('select 1 from damage')).length === 1)
    fake.recoverySeen = undefined
    await untilSettled()
    expect((await show()).status).toBe('ready')
    expect(fake.aside.get(id)).toHaveLength(1)
  })
})

describe('a recovery is refused', () => {
  test('with 404 for strangers and unknown or deleted clusters, and with 401 for readers', async () => {
    await platform.createOrg('acme')
    expect((await recover({}, { token: await platform.createToken('org', 'acme') })).status).toBe(404)
    expect((await recover({}, { token: await platform.createToken('read', 'personal') })).status).toBe(401)
    expect((await recover({}, { token: null })).status).toBe(401)
    expect((await platform.call('POST', '/v1/postgres/aaaaaaaaaaaaaaaa/recover', { body: {} })).status).toBe(404)
    await platform.call('DELETE', `/v1/postgres/${id}`)
    expect((await recover()).status).toBe(404)
    await until(async () => (await platform.sql(`select 1 from cluster where state = 'deleted'`)).length === 1)
    expect((await recover()).status).toBe(404)
  })

  test('with 422 for a field of the wrong type', async () => {
    expect((await recover({ accept_loss: 'yes' })).status).toBe(422)
  })

  test('with 422 without a backup, before the cluster is ready, and if it never was', async () => {
    await platform.sql(`update backup set state = 'failed'`)
    expect(await recover()).toMatchObject({
      status: 422,
      body: { error: 'recovery is unavailable: there is no intact backup with its WAL' },
    })
    const body = { org_slug: 'personal', plan: 'basic', name: 'other' }
    id = (await platform.call('POST', '/v1/postgres', { body })).body.data.id
    expect(await recover()).toMatchObject({
      status: 422,
      body: { error: 'Cluster is creating; it can be recovered once it is ready' },
    })
    fake.toolchainProblem = 'no PostgreSQL'
    await untilSettled()
    expect(await recover()).toMatchObject({
      status: 422,
      body: { error: 'Cluster failed before it was ready, so there is nothing to recover; delete it' },
    })
  })
})

test('a recovery converges, whichever driver call fails', async () => {
  const attempt = async (broken: number) => {
    await openWindow(id)
    await recover()
    await platform.sql('delete from work where resource_id <> $1', [id])
    fake.breakCall(broken)
    await until(async () => (await show()).status === 'ready')
    const calls = fake.calls
    fake.breakCall(0)
    expect(
      (await archives()).filter(({ current }) => current),
      `call ${broken}`,
    ).toHaveLength(1)
    expect(await platform.sql(`select phase from restore where cluster_id = $1`, [id])).toEqual([{ phase: 'done' }])
    return calls
  }
  const calls = await attempt(0)
  expect(calls).toBeGreaterThan(15)
  for (let nth = 1; nth <= calls; nth++) await attempt(nth)
  // One epoch for each recovery.
  expect(await archives()).toHaveLength(calls + 2)
}, 120_000)

test('a recovery converges, whichever statement loses its reply', async () => {
  const attempt = async (nth: number) => {
    await openWindow(id)
    await recover()
    await platform.sql('delete from work where resource_id <> $1', [id])
    const { db, count } = breakable(platform.database.db, nth)
    platform.loopDb = db
    try {
      await until(async () => (await show()).status === 'ready')
    } finally {
      platform.loopDb = undefined
    }
    expect(
      (await archives()).filter(({ current }) => current),
      `statement ${nth}`,
    ).toHaveLength(1)
    expect(await platform.sql('select phase from restore where cluster_id = $1', [id])).toEqual([{ phase: 'done' }])
    return count()
  }
  const statements = await attempt(0)
  expect(statements).toBeGreaterThan(30)
  for (let nth = 1; nth <= statements; nth++) await attempt(nth)
}, 180_000)

describe('the health of a cluster', () => {
  test.each(['global/pg_control is missing from its data directory', 'base is missing from its data directory'])(
    'is down while its server runs without its files: %s',
    async (problem) => {
      fake.dataProblems.set(id, problem)
      await until(async () => (await show()).health.status === 'down')
      expect((await show()).health.reason).toBe(`${problem}; run: berth postgres recover ${id}`)
      // WAL after every backup is missing, also after those that are made meanwhile.
      await platform.sql(`update stretch set latest_at = null, after_hole = true, from_lsn = '0/F000000'`)
      await until(async () => (await show()).health.reason === `${problem}; there is no backup to recover it from`)
      await platform.sql('update stretch set after_hole = false')
      fake.dataProblems.clear()
      await until(async () => (await show()).health.status === 'ok')
    },
  )

  test('names the command if the server does not start because of its files', async () => {
    fake.neverStarts = true
    fake.kill(id, '2026-11-15 10:00:00  PANIC:  could not locate a valid checkpoint record at 0/3000028')
    await until(async () => (await show()).health.status === 'down')
    expect((await show()).health.reason).toMatch(new RegExp(`checkpoint record .*; run: berth postgres recover ${id}$`))
    fake.kill(id, '2026-11-15 10:00:00  FATAL:  could not map anonymous shared memory: Cannot allocate memory')
    await until(async () => /shared memory/.test((await show()).health.reason))
    expect((await show()).health.reason).not.toContain('recover')
  })

  test('shows a full disk of the platform or of the repository', async () => {
    fake.freeBytes = 3 * 1024 ** 2
    await until(async () => (await show()).health.status === 'degraded')
    expect((await show()).health.reason).toBe('the disk of the platform is full (3 MB free)')
    fake.freeBytes = 10 ** 12
    fake.repositoryFreeBytes = 0
    await until(async () => /repository/.test((await show()).health.reason))
    expect((await show()).health.reason).toBe('the disk of the repository is full (0 MB free)')
    fake.neverStarts = true
    fake.kill(id, 'PANIC:  could not write to file "pg_wal/xlogtemp.1": No space left on device')
    fake.repositoryFreeBytes = 10 ** 12
    await until(async () => (await show()).health.status === 'down')
    expect((await show()).health.reason).toBe('PostgreSQL is stopped: the disk is full')
    fake.neverStarts = false
    await until(async () => (await show()).health.status === 'ok')
  })
})
