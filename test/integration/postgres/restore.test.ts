import { beforeEach, describe, expect, test } from 'vitest'
import { usePlatform } from '../../support/platform.ts'
import { until } from '../../support/until.ts'

const platform = usePlatform()

let source: string

/** Makes a ready cluster with one completed backup and a past recovery window from 10:00 to 12:00. */
beforeEach(async () => {
  const made = await platform.call('POST', '/v1/postgres', {
    body: { org_slug: 'personal', plan: 'basic', name: 'shop' },
  })
  source = made.body.data.id
  await settle()
  await platform.sql(
    `update backup set stopped_at = '2026-11-01T10:00:00Z', label = '20261101-095900F', started_at = '2026-11-01T09:59:00Z'`,
  )
  await setLatest('2026-11-01T12:00:00Z')
})

/** Waits, because a second backup within one second is delayed to the next one. */
async function settle() {
  await until(async () => {
    await platform.sql(`update work set run_at = now(), leased_until = null`)
    if (!(await platform.turn())) return true
    const busy = await platform.sql(
      `select 1 from cluster where state not in ('ready', 'failed', 'deleted', 'purged') union all select 1 from backup where state in ('queued', 'running')`,
    )
    const backed = await platform.sql(`select 1 from backup where state = 'completed'`)
    return busy.length === 0 && backed.length > 0
  })
}

async function settleUntilReady(id: string) {
  for (let i = 0; i < 200; i++) {
    await platform.sql(`update work set run_at = now(), leased_until = null`)
    await platform.turn()
    const [{ state }] = await platform.sql('select state from cluster where id = $1', [id])
    if (state === 'ready') return
  }
}

async function untilPlanned(id: string, label: string) {
  await until(async () => {
    await platform.sql(`update work set run_at = now(), leased_until = null`)
    await platform.turn()
    return (
      (
        await platform.sql(`select 1 from restore where cluster_id = $1 and plan -> 'backup' ->> 'label' = $2`, [
          id,
          label,
        ])
      ).length === 1
    )
  })
}

async function setLatest(at: string) {
  await platform.sql(`update stretch set latest_at = $2, latest_lsn = '0/3000000' where cluster_id = $1`, [source, at])
}

const restore = (body: unknown, id = source, options: object = {}) =>
  platform.call('POST', `/v1/postgres/${id}/restore`, { body, ...options })

describe('a restore answers', () => {
  test.each([
    [{}, 'one of backup_id or pitr_time is required'],
    [{ backup_id: null, pitr_time: null }, 'one of backup_id or pitr_time is required'],
    [{ backup_id: ' ', pitr_time: '' }, 'one of backup_id or pitr_time is required'],
    [{ name: 'x' }, 'one of backup_id or pitr_time is required'],
    [{ backup_id: 'a', pitr_time: 'b' }, 'backup_id and pitr_time are mutually exclusive'],
    [{ pitr_time: '2026-11-01T11:00:00' }, 'pitr_time must be an RFC 3339 timestamp with a UTC offset'],
    [{ pitr_time: 'yesterday' }, 'pitr_time must be an RFC 3339 timestamp with a UTC offset'],
    [
      { pitr_time: '2026-11-01T09:59:59.999999Z' },
      'pitr_time is outside the recovery window 2026-11-01T10:00:00Z to 2026-11-01T12:00:00Z',
    ],
    [
      { pitr_time: '2026-11-01T12:00:00.000001Z' },
      'pitr_time is outside the recovery window 2026-11-01T10:00:00Z to 2026-11-01T12:00:00Z',
    ],
    [{ pitr_time: '2026-11-01T13:00:00+02:00', name: 'Bad Name' }, expect.stringContaining('name must be')],
    [{ pitr_time: '2026-11-01T11:00:00Z', name: 'shop' }, 'name shop has already been taken'],
    [{ backup_id: 5 }, expect.stringContaining('backup_id')],
    [{ pitr_time: true }, expect.stringContaining('pitr_time')],
    [{ pitr_time: '2026-11-01T11:00:00Z', name: ['x'] }, expect.stringContaining('name')],
  ])('422 for %j', async (body, error) => {
    expect(await restore(body)).toMatchObject({ status: 422, body: { error } })
    expect(await platform.sql('select 1 from restore')).toEqual([])
    expect(await platform.sql('select 1 from pin')).toEqual([])
  })

  test('401 without a token or with a read-only one', async () => {
    const body = { pitr_time: '2026-11-01T11:00:00Z' }
    expect((await restore(body, source, { token: null })).status).toBe(401)
    expect((await restore({}, 'nothing', { token: 'berth_wrong' })).status).toBe(401)
    const token = await platform.createToken('read', 'personal')
    expect(await restore(body, source, { token })).toMatchObject({
      status: 401,
      body: { error: 'this token may only read' },
    })
  })

  test('400 for a body that is not a JSON object, whatever the cluster', async () => {
    for (const raw of ['{', '[]', '"x"', 'null']) {
      expect((await platform.call('POST', '/v1/postgres/aaaaaaaaaaaaaaaa/restore', { raw })).status).toBe(400)
    }
  })

  test('404 for an unknown, foreign or deleted cluster, whatever the fields', async () => {
    const notFound = { status: 404, body: { error: 'Cluster not found' } }
    for (const id of ['aaaaaaaaaaaaaaaa', 'x', '..%2f', '%00'])
      expect(await restore({ backup_id: 5 }, id)).toMatchObject(notFound)
    await platform.createOrg('acme')
    expect(await restore({}, source, { token: await platform.createToken('org', 'acme') })).toMatchObject(notFound)
    await platform.call('DELETE', `/v1/postgres/${source}`)
    expect(await restore({ pitr_time: '2026-11-01T11:00:00Z' })).toMatchObject(notFound)
    await settle()
    expect(await restore({ pitr_time: '2026-11-01T11:00:00Z' })).toMatchObject(notFound)
  })

  test('404 for an unknown backup', async () => {
    for (const backup_id of ['20261101-095901F', 'latest', '../../etc', "x'; drop table backup"]) {
      expect(await restore({ backup_id })).toMatchObject({
        status: 404,
        body: { error: `Backup ${backup_id} not found for cluster ${source}` },
      })
    }
  })

  test.each(['queued', 'running', 'failed'])('400 for a backup that is %s', async (state) => {
    await platform.sql(`update backup set state = $1`, [state])
    expect(await restore({ backup_id: '20261101-095900F' })).toMatchObject({
      status: 400,
      body: { error: `restore failed: backup 20261101-095900F is ${state}` },
    })
  })

  test('400 for a backup that a scrub found damaged', async () => {
    await platform.sql(`update backup set damage = 'checksum of base/1/2 differs'`)
    expect((await restore({ backup_id: '20261101-095900F' })).status).toBe(400)
  })

  test('422 without a backup', async () => {
    await platform.sql(`update backup set state = 'failed'`)
    expect(await restore({ pitr_time: '2026-11-01T11:00:00Z' })).toMatchObject({
      status: 422,
      body: { error: 'point-in-time restore is unavailable: no backup has completed yet' },
    })
  })

  test('422 for a time in a gap of the archive', async () => {
    await platform.sql(`update archive set ended_at = now()`)
    await platform.sql(`update stretch set ended = true`)
    await platform.sql(
      `insert into archive (cluster_id, epoch, slot, timeline, start_lsn) values ($1, 2, 'berth_2', 1, '0/5000000')`,
      [source],
    )
    await platform.sql(
      `insert into stretch (cluster_id, epoch, from_lsn, latest_at, latest_lsn)
       values ($1, 2, '0/5000000', '2026-11-01T15:00:00Z', '0/6000000')`,
      [source],
    )
    await platform.sql(
      `insert into backup (id, cluster_id, label, state, epoch, timeline, start_lsn, stop_lsn, stopped_at)
       values ('second', $1, '20261101-135900F', 'completed', 2, 1, '0/5000028', '0/5000100', '2026-11-01T14:00:00Z')`,
      [source],
    )
    expect(await restore({ pitr_time: '2026-11-01T13:00:00Z' })).toMatchObject({
      status: 422,
      body: { error: 'pitr_time is in a gap of the archive (2026-11-01T12:00:00Z to 2026-11-01T14:00:00Z)' },
    })
    expect((await restore({ pitr_time: '2026-11-01T11:00:00Z' })).status).toBe(201)
    expect((await restore({ pitr_time: '2026-11-01T14:30:00Z' })).status).toBe(201)
    const { body } = await platform.call('GET', `/v1/postgres/${source}`)
    expect(body.data.recovery_windows).toHaveLength(2)
    expect(body.data.recovery_window).toEqual({ earliest: '2026-11-01T14:00:00Z', latest: '2026-11-01T15:00:00Z' })
  })
})

describe('a restore', () => {
  test('answers 201 with a new cluster that has the settings of its source', async () => {
    const made = await restore({ pitr_time: '2026-11-01t13:30:00.1234567+02:00' })
    expect(made.status).toBe(201)
    const { data } = made.body
    expect(data).toMatchObject({
      name: 'shop-restore-20261101113000',
      status: 'creating',
      plan: 'basic',
      pg_major_version: '16',
      attached_apps: [],
      restore: { source_cluster_id: source, pitr_time: '2026-11-01T11:30:00.123456Z', phase: 'waiting', error: null },
    })
    expect(data).not.toHaveProperty('endpoints')
    expect(data.id).not.toBe(source)
    const [plan] = (await platform.sql('select plan from restore')).map((row) => row.plan)
    expect(plan).toMatchObject({
      backup: { clusterId: source, label: '20261101-095900F' },
      pieces: [{ clusterId: source, epoch: 1, end: '0/3000000' }],
      search: { time: '1793532600123456' },
    })
  })

  test('of a backup replays nothing after its end', async () => {
    const made = await restore({ backup_id: '20261101-095900F', pitr_time: '  ' })
    expect(made.body.data).toMatchObject({
      name: 'shop-restore-20261101095900',
      restore: { backup_id: '20261101-095900F' },
    })
    const [plan] = (await platform.sql('select plan from restore')).map((row) => row.plan)
    expect(plan).toMatchObject({ pieces: [{ end: plan.backup.stopLsn }] })
    expect(plan).not.toHaveProperty('search')
  })

  test('of the same time again gets another name', async () => {
    const names = []
    for (let i = 0; i < 3; i++) names.push((await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data.name)
    expect(names).toEqual([
      'shop-restore-20261101110000',
      'shop-restore-20261101110000-2',
      'shop-restore-20261101110000-3',
    ])
  })

  test('becomes ready with new passwords and can be restored at once', async () => {
    const made = await restore({ pitr_time: '2026-11-01T11:00:00Z', name: 'again' })
    const id = made.body.data.id
    await settleUntilReady(id)
    const { data } = (await platform.call('GET', `/v1/postgres/${id}`)).body
    expect(data).toMatchObject({ status: 'ready', restore: { phase: 'done', verified: true } })
    const password = async (cluster: string) =>
      (await platform.call('GET', `/v1/postgres/${cluster}/users/fly-user/credentials`)).body.data.password
    expect(await password(id)).not.toBe(await password(source))
    const [archive] = await platform.sql('select base from archive where cluster_id = $1', [id])
    expect(archive.base).toMatchObject({
      backup: { clusterId: source },
      pieces: [{ clusterId: source, end: '0/3000000' }],
    })
  })

  test('becomes ready without the default database if the tenant dropped it', async () => {
    for (const databases of [['shop'], []]) {
      platform.fake.databases = databases
      const { id } = (await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data
      await settleUntilReady(id)
      expect((await platform.call('GET', `/v1/postgres/${id}`)).body.data.status).toBe('ready')
    }
  })

  test('becomes ready if the owner allows no connections, and its health shows that', async () => {
    platform.fake.probeProblem = 'too many connections for database "fly-db"'
    platform.fake.probeCode = '53300'
    const { id } = (await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data
    await settleUntilReady(id)
    const show = async () => (await platform.call('GET', `/v1/postgres/${id}`)).body.data
    expect((await show()).status).toBe('ready')
    await until(async () => {
      await settle()
      return (await show()).health.status === 'degraded'
    })
    expect((await show()).health.reason).toContain('too many connections')
  })

  test('that fails shows a reason and can be deleted', async () => {
    platform.fake.copyProblem = 'backup 20261101-095900F is damaged: checksum mismatch'
    const id = (await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data.id
    await settle()
    const { data } = (await platform.call('GET', `/v1/postgres/${id}`)).body
    expect(data).toMatchObject({
      status: 'failed',
      failure: platform.fake.copyProblem,
      restore: { phase: 'failed', error: platform.fake.copyProblem },
    })
    expect((await platform.call('DELETE', `/v1/postgres/${id}`)).status).toBe(202)
    await settle()
    expect(await platform.sql('select 1 from pin where holder_id = $1', [id])).toEqual([])
  })

  describe('with a reflink copy of a backup', () => {
    const scrubbed = (hours: number) =>
      platform.sql(`update backup set scrubbed_at = now() - interval '1 hour' * $1`, [hours])
    const show = async (id: string) => (await platform.call('GET', `/v1/postgres/${id}`)).body.data
    const isPinned = async (id: string) =>
      (await platform.sql('select 1 from pin where holder_id = $1', [id])).length > 0

    beforeEach(() => {
      platform.fake.reflinks = true
      platform.fake.verificationRuns = true
    })

    const restoreAndSettle = async () => {
      const { id } = (await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data
      await settle()
      return id
    }

    const lookUntil = (holds: () => Promise<boolean>) =>
      until(async () => {
        await platform.sql('update work set run_at = now(), leased_until = null')
        await platform.turn()
        return holds()
      })
    const hasOwnBackup = async (id: string) =>
      (await platform.sql(`select 1 from backup where cluster_id = $1 and state = 'completed'`, [id])).length > 0

    test('is ready first and verified later if the backup was scrubbed within a day', async () => {
      await scrubbed(23)
      const id = await restoreAndSettle()
      expect(await show(id)).toMatchObject({ status: 'ready', restore: { phase: 'done', verified: false } })
      // The cluster does not need the backup any more, but it must stay while it is verified.
      await lookUntil(() => hasOwnBackup(id))
      expect(await isPinned(id)).toBe(true)
      platform.fake.verificationRuns = false
      await lookUntil(async () => (await show(id)).restore.verified)
      expect((await show(id)).status).toBe('ready')
      // Its base makes the time before its first own backup restorable.
      expect(await isPinned(id)).toBe(true)
    })

    test.each([
      ['longer ago', () => scrubbed(25)],
      ['never, but right when it was made', async () => undefined],
      ['and found damaged once', () => platform.sql(`update backup set scrubbed_at = null, damaged_at = now()`)],
    ])('is verified first if it was scrubbed %s', async (_name, prepare) => {
      await prepare()
      const id = await restoreAndSettle()
      expect(await show(id)).toMatchObject({ status: 'ready', restore: { verified: true } })
    })

    test('fails if the backup turns out damaged, and that scrub is not trusted any more', async () => {
      await scrubbed(1)
      const id = await restoreAndSettle()
      platform.fake.verificationRuns = false
      platform.fake.blockProblem = 'backup 20261101-095900F is damaged: checksum mismatch for file "base/1/2"'
      await lookUntil(async () => platform.fake.clusters.get(id)?.process.is === 'stopped')
      expect(await show(id)).toMatchObject({
        status: 'failed',
        failure: platform.fake.blockProblem,
        restore: { phase: 'failed', verified: false, error: platform.fake.blockProblem },
      })
      expect(await show(id)).not.toHaveProperty('endpoints')
      expect(
        await platform.sql('select 1 from backup where cluster_id = $1 and scrubbed_at is not null', [source]),
      ).toEqual([])
    })

    test('is verified in the end, whichever driver call fails', async () => {
      await scrubbed(1)
      for (let nth = 1; nth <= 6; nth++) {
        platform.fake.verificationRuns = true
        const id = await restoreAndSettle()
        await platform.sql('delete from work where resource_id <> $1', [id])
        platform.fake.verificationRuns = false
        platform.fake.breakCall(nth)
        await lookUntil(async () => (await show(id)).restore.verified)
        expect((await show(id)).status).toBe('ready')
      }
    })
  })

  test('continues if its source is deleted meanwhile', async () => {
    const id = (await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data.id
    await platform.call('DELETE', `/v1/postgres/${source}`)
    await settle()
    await settle()
    expect((await platform.call('GET', `/v1/postgres/${id}`)).body.data.status).toBe('ready')
    expect(await platform.sql('select state from cluster where id = $1', [source])).toEqual([{ state: 'deleted' }])
  })

  test('reports how much it copied and replayed, even without intermediate checks', async () => {
    const { id } = (await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data
    await settleUntilReady(id)
    expect((await platform.call('GET', `/v1/postgres/${id}`)).body.data.restore).toMatchObject({
      phase: 'done',
      bytes_done: 50_000_000,
      bytes_total: 50_000_000,
      replayed_until: '2026-11-01T10:59:00.123000Z',
    })
  })

  test('uses an older backup if the newest is damaged, and records the damage', async () => {
    await platform.sql('update cluster set retention_at = now()') // otherwise retention would remove the older backup
    await platform.sql(
      `insert into backup (id, cluster_id, label, state, epoch, timeline, start_lsn, stop_lsn, started_at, stopped_at, finished_at, verified_at)
       values ('older', $1, '20261031-000000F', 'completed', 1, 1, '0/1000028', '0/1000100', $2, $2, $2, now())`,
      [source, '2026-10-31T00:00:00Z'],
    )
    const { id } = (await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data
    platform.fake.copySeen = {
      is: 'failed',
      reason: 'backup 20261101-095900F is damaged: checksum mismatch',
      damage: 'checksum mismatch',
    }
    await untilPlanned(id, '20261031-000000F')
    platform.fake.copySeen = undefined
    const [{ plan }] = await platform.sql('select plan from restore')
    expect(plan).toMatchObject({
      backup: { clusterId: source, label: '20261031-000000F', startLsn: '0/1000028' },
      pieces: [{ clusterId: source, epoch: 1, end: '0/3000000' }],
    })
    const pins = await platform.sql('select label from pin where holder_id = $1 order by label', [id])
    expect(pins.map(({ label }) => label)).toEqual(['20261031-000000F', '20261101-095900F'])
    await settleUntilReady(id)
    expect((await platform.call('GET', `/v1/postgres/${id}`)).body.data.status).toBe('ready')
    expect(await restore({ backup_id: '20261101-095900F' })).toMatchObject({
      status: 400,
      body: { error: 'restore failed: backup 20261101-095900F is damaged: checksum mismatch; choose another backup' },
    })
    await until(async () => {
      await settle()
      const replaced = `select 1 from backup join backup damaged using (cluster_id)
        where cluster_id = $1 and backup.state = 'completed' and backup.started_at > damaged.damaged_at`
      return (await platform.sql(replaced, [source])).length > 0
    })
  })

  test.each([[{ backup_id: '20261101-095900F' }], [{ pitr_time: '2026-11-01T11:00:00Z' }]])(
    'of a damaged backup fails without an alternative: %j',
    async (body) => {
      const { id } = (await restore(body)).body.data
      const reason = 'backup 20261101-095900F is damaged: checksum mismatch'
      platform.fake.copySeen = { is: 'failed', reason, damage: 'checksum mismatch' }
      await settle()
      expect((await platform.call('GET', `/v1/postgres/${id}`)).body.data).toMatchObject({
        status: 'failed',
        failure: expect.stringContaining(reason),
      })
      expect(
        await platform.sql('select damage from backup where cluster_id = $1 and damage is not null', [source]),
      ).toEqual([{ damage: 'checksum mismatch' }])
    },
  )

  test('that finds damaged WAL starts a new backup of its source', async () => {
    const { id } = (await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data
    const reason = 'the write-ahead log is damaged: replay ended at 0/2900000 instead of 0/3000000'
    const hole = { timeline: 1, fromLsn: '0/2900000', toLsn: '0/3000000', kind: 'damaged', reason } as const
    platform.fake.recoverySeen = { is: 'failed', reason, hole }
    await until(async () => {
      await platform.sql(`update work set run_at = now(), leased_until = null`)
      await platform.turn()
      return (await platform.sql(`select 1 from cluster where id = $1 and state = 'failed'`, [id])).length === 1
    })
    expect(await platform.sql(`select cluster_id from backup where label <> '20261101-095900F'`)).toEqual([
      { cluster_id: source },
    ])
  })

  test.each([
    [
      'the checksums are verified',
      { copySeen: { is: 'running', bytesDone: 9, bytesTotal: 9, bytesVerified: 1 } },
      { copySeen: { is: 'running', bytesDone: 9, bytesTotal: 9, bytesVerified: 2 } },
    ],
    [
      'WAL without a commit is replayed',
      { recoverySeen: { is: 'replaying', replayedUntil: null, replayedLsn: '0/3000000' } },
      { recoverySeen: { is: 'replaying', replayedUntil: null, replayedLsn: '0/4000000' } },
    ],
  ] as const)('does not fail while %s, but fails without progress', async (_, first, second) => {
    const { id } = (await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data
    await platform.sql('delete from work where resource_id <> $1', [id])
    const look = async (turns: number) => {
      for (let i = 0; i < turns; i++) {
        await platform.sql(`update work set run_at = now(), leased_until = null`)
        await platform.turn()
      }
      return (await platform.call('GET', `/v1/postgres/${id}`)).body.data
    }
    const pass = () =>
      platform.sql(`update cluster set progress_at = progress_at - interval '4 minutes' where id = $1`, [id])
    Object.assign(platform.fake, first)
    expect(await look(4)).toMatchObject({ status: 'initializing' })
    await pass()
    Object.assign(platform.fake, second)
    expect(await look(1)).toMatchObject({ status: 'initializing' })
    await pass()
    expect(await look(1)).toMatchObject({ status: 'initializing' })
    await pass()
    expect(await look(1)).toMatchObject({
      status: 'failed',
      failure: expect.stringContaining('no progress in 5 minutes'),
    })
  })

  test.each([
    [
      'copy',
      (bytesDone: number) => ({ copySeen: { is: 'running', bytesDone, bytesTotal: 9, bytesVerified: 0 } }),
      'the copy was interrupted',
    ],
    [
      'replay',
      (lsn: number) => ({
        recoverySeen: { is: 'replaying', replayedUntil: null, replayedLsn: `0/${lsn}000000`, problem: 'out of memory' },
      }),
      /the replay was interrupted \d+ times; out of memory/,
    ],
  ] as const)('fails if the %s begins again and again', async (_, at, failure) => {
    const { id } = (await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data
    await platform.sql('delete from work where resource_id <> $1', [id])
    const statuses: string[] = []
    for (let turn = 0; turn < 60; turn++) {
      Object.assign(platform.fake, at(turn % 2 === 0 ? 5 : 3))
      await platform.sql(`update work set run_at = now(), leased_until = null`)
      await platform.turn()
      statuses.push((await platform.call('GET', `/v1/postgres/${id}`)).body.data.status)
    }
    // A few interruptions, such as restarts of the host, are no reason to give up.
    expect(statuses.slice(0, 20)).not.toContain('failed')
    const { data } = (await platform.call('GET', `/v1/postgres/${id}`)).body
    expect(data.failure).toEqual(
      typeof failure === 'string' ? expect.stringContaining(failure) : expect.stringMatching(failure),
    )
  })

  test('a copy that begins again has the whole deadline for each part of it', async () => {
    const { id } = (await restore({ pitr_time: '2026-11-01T11:00:00Z' })).body.data
    await platform.sql('delete from work where resource_id <> $1', [id])
    for (const bytesDone of [8, 1, 2, 3, 4]) {
      Object.assign(platform.fake, { copySeen: { is: 'running', bytesDone, bytesTotal: 9, bytesVerified: 0 } })
      for (let turn = 0; turn < 4; turn++) {
        await platform.sql(`update work set run_at = now(), leased_until = null`)
        await platform.turn()
      }
      await platform.sql(`update cluster set progress_at = now() - interval '4 minutes' where id = $1`, [id])
      const { data } = (await platform.call('GET', `/v1/postgres/${id}`)).body
      expect(data).toMatchObject({ status: 'initializing', restore: { bytes_done: bytesDone } })
    }
  })

  test('fifty requests with one Idempotency-Key create one cluster', async () => {
    const replies = await Promise.all(
      Array.from({ length: 50 }, () =>
        restore({ pitr_time: '2026-11-01T11:00:00Z' }, source, { headers: { 'idempotency-key': 'k' } }),
      ),
    )
    expect(new Set(replies.map((reply) => reply.status)).size).toBeLessThanOrEqual(2)
    expect(new Set(replies.filter((reply) => reply.status === 201).map((reply) => reply.body.data.id)).size).toBe(1)
    expect(await platform.sql('select count(*) from restore')).toEqual([{ count: 1 }])
  })

  test('converges, whichever driver call fails', async () => {
    await platform.setQuotas({ clusters: 'unlimited' })
    const attempt = async (name: string, broken: number) => {
      const id = (await restore({ pitr_time: '2026-11-01T11:00:00Z', name })).body.data.id
      // Only the new cluster is processed, so that all counted calls belong to it.
      await platform.sql('delete from work where resource_id <> $1', [id])
      platform.fake.breakCall(broken)
      for (let i = 0; i < 5; i++) await settle()
      expect((await platform.call('GET', `/v1/postgres/${id}`)).body.data.status, `call ${broken}`).toBe('ready')
      return platform.fake.calls
    }
    const calls = await attempt('count', 0)
    expect(calls).toBeGreaterThan(10)
    for (let nth = 1; nth <= Math.min(calls, 40); nth++) await attempt(`n${nth}`, nth)
  }, 120_000)
})

test('a restore, a fork and an undelete count as clusters', async () => {
  await platform.setQuotas({ clusters: 1 })
  const post = (path: string, body: object = {}) => platform.call('POST', `/v1/postgres/${source}/${path}`, { body })
  const refusal = { status: 422, body: { error: expect.stringContaining('quota clusters exceeded') } }
  expect(await post('restore', { pitr_time: '2026-11-01T11:00:00Z' })).toMatchObject(refusal)
  expect(await post('fork')).toMatchObject(refusal)
  expect(await platform.sql('select 1 from restore union all select 1 from pin')).toEqual([])
  await platform.call('DELETE', `/v1/postgres/${source}`)
  const other = { org_slug: 'personal', plan: 'basic', name: 'other' }
  expect((await platform.call('POST', '/v1/postgres', { body: other })).status).toBe(201)
  await until(async () => {
    await platform.sql(`update work set run_at = now(), leased_until = null`)
    await platform.turn()
    return (await platform.sql(`select 1 from cluster where state = 'deleted'`)).length === 1
  })
  expect(await post('undelete')).toMatchObject(refusal)
})

describe('the backup and WAL of a restore', () => {
  test('are not removed while it runs or before the new cluster has its own backup', async () => {
    const id = (await restore({ backup_id: '20261101-095900F' })).body.data.id
    expect(await platform.sql('select cluster_id, label from pin where holder_id = $1', [id])).toEqual([
      { cluster_id: source, label: '20261101-095900F' },
    ])
    await platform.sql(
      `insert into backup (id, cluster_id, label, state, epoch, timeline, start_lsn, stop_lsn, stopped_at)
       values ('newer', $1, '20261102-100000F', 'completed', 1, 1, '0/2800028', '0/2800100', '2026-11-02T10:00:00Z')`,
      [source],
    )
    await platform.sql('update cluster set quota_checked_at = null, retention_at = null where id = $1', [source])
    await settle()
    const states = async () =>
      (await platform.sql('select label, state from backup where cluster_id = $1 order by label', [source])).map(
        (row) => row.state,
      )
    expect((await states())[0]).toBe('completed')
    await platform.sql('delete from pin')
    await platform.sql('update cluster set quota_checked_at = null, retention_at = null where id = $1', [source])
    for (let i = 0; i < 3; i++) await settle()
    expect(['removing', 'removed']).toContain((await states())[0])
  })
})

describe('fork and undelete', () => {
  test('a fork copies a ready cluster under a new name', async () => {
    await platform.call('PATCH', `/v1/postgres/${source}`, { body: { retention_days: 21 } })
    const made = await platform.call('POST', `/v1/postgres/${source}/fork`, { body: {} })
    const data = { name: 'shop-fork', status: 'creating', retention_days: 21 }
    expect(made).toMatchObject({ status: 201, body: { data } })
    expect((await platform.call('POST', `/v1/postgres/${source}/fork`, { body: {} })).status).toBe(422)
    expect((await platform.call('POST', '/v1/postgres/aaaaaaaaaaaaaaaa/fork', { body: {} })).status).toBe(404)
  })

  test('undelete restores only a deleted cluster, under its name', async () => {
    const undelete = () => platform.call('POST', `/v1/postgres/${source}/undelete`, { body: {} })
    expect((await undelete()).status).toBe(422)
    await platform.call('DELETE', `/v1/postgres/${source}`)
    await settle()
    const made = await undelete()
    expect(made).toMatchObject({
      status: 201,
      body: { data: { name: 'shop', restore: { source_cluster_id: source } } },
    })
    await platform.sql(`update cluster set state = 'purged' where id = $1`, [source])
    expect((await undelete()).status).toBe(410)
  })

  test('backups of a deleted cluster are removed after the retention time, unless another cluster depends on them', async () => {
    const id = (await restore({ backup_id: '20261101-095900F' })).body.data.id
    await platform.call('DELETE', `/v1/postgres/${source}`)
    await settle()
    await platform.sql(`update cluster set deleted_at = now() - interval '8 days' where id = $1`, [source])
    await settle()
    expect(await platform.sql('select state from cluster where id = $1', [source])).toEqual([{ state: 'deleted' }])
    await platform.sql('delete from pin where holder_id = $1', [id])
    await until(async () => {
      await settle()
      const [{ state }] = await platform.sql('select state from cluster where id = $1', [source])
      return state === 'purged'
    })
  })

  test('a deleted cluster whose files are being removed cannot be undeleted any more', async () => {
    await platform.call('DELETE', `/v1/postgres/${source}`)
    await settle()
    await platform.sql(`update cluster set deleted_at = now() - interval '8 days' where id = $1`, [source])
    let undeleted: Awaited<ReturnType<typeof platform.call>> | undefined
    platform.fake.whileRemoving = async () => {
      undeleted ??= await platform.call('POST', `/v1/postgres/${source}/undelete`, { body: {} })
    }
    await until(async () => {
      await settle()
      const [{ state }] = await platform.sql('select state from cluster where id = $1', [source])
      return state === 'purged'
    })
    platform.fake.whileRemoving = async () => {}
    expect(undeleted?.status).toBe(422)
    expect(await platform.sql(`select 1 from cluster where id <> $1`, [source])).toEqual([])
  })
})

describe('backups', () => {
  const health = async () => (await platform.call('GET', `/v1/postgres/${source}`)).body.data.health

  async function lookClosely() {
    await platform.sql('update cluster set quota_checked_at = null')
    await settle()
  }

  async function labels() {
    return (await list()).map(({ id }: { id: string }) => id)
  }

  /** Makes a backup that the recovery window does not need. */
  async function addOldBackup() {
    await platform.sql(
      `insert into backup (id, cluster_id, label, state, epoch, timeline, start_lsn, stop_lsn, started_at, stopped_at, finished_at, verified_at)
       values ('old', $1, '20261001-000000F', 'completed', 1, 1, '0/1000028', '0/1000100', $2, $2, $2, now())`,
      [source, '2026-10-01T00:00:00Z'],
    )
    // No backup is due, because retention would wait for it.
    await platform.sql(`update backup set started_at = now() where id <> 'old'`)
  }

  async function untilRetained() {
    await platform.sql('update cluster set retention_at = null')
    await until(async () => {
      await settle()
      return (
        (await platform.sql('select 1 from cluster where id = $1 and retention_at is not null', [source])).length > 0
      )
    })
  }

  const list = async () => (await platform.call('GET', `/v1/postgres/${source}/backups`)).body.data

  test('the first one starts automatically', async () => {
    expect(await list()).toMatchObject([{ id: '20261101-095900F', status: 'completed', type: 'full', size_bytes: 40 }])
  })

  test('one is made on request, but not two at once', async () => {
    const ask = () => platform.call('POST', `/v1/postgres/${source}/backups`, { body: { type: 'incr' } })
    expect(await ask()).toMatchObject({ status: 202, body: '' })
    expect(await ask()).toMatchObject({ status: 409, body: { error: 'backup already in progress' } })
    expect((await list())[0]).toMatchObject({ status: 'queued', type: 'full' })
    await settle()
    expect((await list())[0]).toMatchObject({ id: expect.stringMatching(/^\d{8}-\d{6}F$/), status: 'completed' })
  })

  test('a failed one shows its reason, and another is tried later', async () => {
    platform.fake.backupProblem = 'pg_basebackup: error: could not connect'
    await platform.call('POST', `/v1/postgres/${source}/backups`, { body: { type: 'full' } })
    await settle()
    expect((await list())[0]).toMatchObject({ status: 'failed', failure: platform.fake.backupProblem })
  })

  test('one whose worker died right after it started the job leaves no job when its cluster is deleted', async () => {
    await platform.call('POST', `/v1/postgres/${source}/backups`, { body: { type: 'full' } })
    const [queued] = await list()
    expect(queued.status).toBe('queued')
    platform.fake.staged.set(source, queued.id)
    await platform.call('DELETE', `/v1/postgres/${source}`)
    await settle()
    expect(await platform.sql('select state from backup where label = $1', [queued.id])).toEqual([{ state: 'failed' }])
    expect(platform.fake.staged.has(source)).toBe(false)
  })

  test('a running one fails only without progress, and verification is progress', async () => {
    await platform.call('POST', `/v1/postgres/${source}/backups`, { body: { type: 'full' } })
    await platform.sql(`delete from work where kind <> 'backup'`)
    const look = async (turns: number) => {
      for (let i = 0; i < turns; i++) {
        await platform.sql(`update work set run_at = now(), leased_until = null`)
        await platform.turn()
      }
      return (await list())[0]
    }
    const verified = (bytesVerified: number) => ({ is: 'running', bytesDone: 9, bytesTotal: 9, bytesVerified }) as const
    const pass = () => platform.sql(`update backup set progress_at = progress_at - interval '8 minutes'`)
    platform.fake.backupSeen = verified(1)
    expect(await look(2)).toMatchObject({ status: 'running', size_bytes: 9 })
    await pass()
    platform.fake.backupSeen = verified(2)
    await look(1)
    await pass()
    expect(await look(1)).toMatchObject({ status: 'running', size_bytes: 9 })
    await pass()
    expect(await look(1)).toMatchObject({
      status: 'failed',
      failure: expect.stringContaining('no progress in 10 minutes'),
    })
  })

  test('one that does not fit into the repository fails before it starts, and the health of the cluster shows that', async () => {
    platform.fake.repositoryFreeBytes = 100 * 1024 ** 2
    platform.fake.staged.clear()
    await platform.sql(`update backup set started_at = '2026-11-01T09:59:00Z'`)
    await platform.call('POST', `/v1/postgres/${source}/backups`, { body: { type: 'full' } })
    await settle()
    const failure = 'not enough disk space in the repository: 100 MB are free, 167 MB are needed'
    const [failed] = await list()
    expect(failed).toMatchObject({ status: 'failed', failure })
    expect(platform.fake.staged.size).toBe(0)
    await lookClosely()
    expect(await health()).toMatchObject({ status: 'degraded', reason: `backup ${failed.id} failed: ${failure}` })
    platform.fake.repositoryFreeBytes = 10 ** 12
    await platform.call('POST', `/v1/postgres/${source}/backups`, { body: { type: 'full' } })
    await settle()
    await lookClosely()
    expect(await health()).toMatchObject({ status: 'ok' })
  })

  test('unneeded ones are removed even while the archive is not receiving', async () => {
    await addOldBackup()
    platform.fake.receiverProblem = true
    await untilRetained()
    expect(await labels()).toEqual(['20261101-095900F'])
    expect(await health()).toMatchObject({
      status: 'degraded',
      reason:
        'the archive is not receiving: could not write 4 bytes to file "7.partial": No space left on device; it has everything up to 0/3000000',
    })
  })

  test('a pinned one is kept with the WAL it needs, without later WAL', async () => {
    await addOldBackup()
    const path = `/v1/postgres/${source}/backups/20261001-000000F`
    expect(await platform.call('PATCH', path, { body: { pinned: true } })).toMatchObject({
      status: 200,
      body: { data: { id: '20261001-000000F', pinned: true } },
    })
    const window = async () => (await platform.call('GET', `/v1/postgres/${source}`)).body.data.recovery_window
    expect((await window()).earliest).toBe('2026-10-01T00:00:00Z')
    await untilRetained()
    expect(await labels()).toEqual(['20261101-095900F', '20261001-000000F'])
    expect((await window()).earliest).toBe('2026-11-01T10:00:00Z')
    expect(platform.fake.trimmed).toContainEqual({ before: '0/2000028', kept: ['0/1000028 to 0/1000100'] })
    expect((await restore({ pitr_time: '2026-10-15T00:00:00Z' })).status).toBe(422)
    expect((await restore({ backup_id: '20261001-000000F' })).status).toBe(201)
    expect((await platform.call('PATCH', path, { body: { pinned: false } })).body.data.pinned).toBe(false)
    await platform.sql('delete from pin')
    await untilRetained()
    expect(await labels()).toEqual(['20261101-095900F'])
  })

  test('pins are stored in the repository, with retries, even for a deleted cluster', async () => {
    const label = '20261101-095900F'
    const pin = (pinned: boolean) =>
      platform.call('PATCH', `/v1/postgres/${source}/backups/${label}`, { body: { pinned } })
    const told = () => platform.fake.descriptions.get(source)
    await platform.sql('update backup set started_at = now()')
    platform.fake.describeProblem = 'No space left on device'
    expect((await pin(true)).status).toBe(200)
    expect(told()).toMatchObject({ pinned: [] })
    await settle()
    expect(await health()).toMatchObject({ status: 'degraded', reason: 'No space left on device' })
    platform.fake.describeProblem = undefined
    await lookClosely()
    expect(told()).toMatchObject({ drillQuery: null, retentionDays: null, pinned: [label] })
    expect(await health()).toMatchObject({ status: 'ok' })
    await platform.call('DELETE', `/v1/postgres/${source}`)
    await settle()
    await pin(false)
    await settle()
    expect(told()).toMatchObject({ drillQuery: null, retentionDays: null, pinned: [] })
  })

  test('pinning is rejected for other organizations, read tokens and unknown backups', async () => {
    const path = `/v1/postgres/${source}/backups/20261101-095900F`
    const pin = (body: unknown, options: object = {}, to = path) => platform.call('PATCH', to, { body, ...options })
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    const reader = await platform.createToken('read', 'personal')
    expect(await pin({ pinned: true }, { token })).toMatchObject({ status: 404, body: { error: 'Cluster not found' } })
    expect((await pin({ pinned: true }, { token: reader })).status).toBe(401)
    for (const body of [{}, { pinned: null }, { pinned: 'yes' }]) expect((await pin(body)).status).toBe(422)
    for (const label of ['20261101-095901F', 'x', '%00']) {
      const other = `/v1/postgres/${source}/backups/${label}`
      const error = `Backup ${decodeURIComponent(label)} not found for cluster ${source}`
      expect(await pin({ pinned: true }, {}, other)).toMatchObject({ status: 404, body: { error } })
    }
    await platform.sql(`update backup set state = 'failed'`)
    expect(await pin({ pinned: true })).toMatchObject({ status: 422 })
    expect(await platform.sql('select 1 from backup where pinned')).toEqual([])
  })

  test.each([{ type: 'weekly' }, { type: 5 }])('422 for %j', async (body) => {
    expect((await platform.call('POST', `/v1/postgres/${source}/backups`, { body })).status).toBe(422)
  })
})
