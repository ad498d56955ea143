import { beforeEach, describe, expect, test } from 'vitest'
import { UnusableArchiveError, WalFileError } from '../../../src/drivers/repository/driver.ts'
import { recordDamage } from '../../../src/store/postgres/damage.ts'
import { usePlatform } from '../../support/platform.ts'
import { until as untilSo } from '../../support/until.ts'

const platform = usePlatform()
const { fake } = platform
const label = '20261101-095900F'

let source: string

/** A cluster with a backup at 10:00 and samples until 12:00. */
beforeEach(async () => {
  fake.drillIntervalSeconds = null
  source = (
    await platform.call('POST', '/v1/postgres', { body: { org_slug: 'personal', plan: 'basic', name: 'shop' } })
  ).body.data.id
  await until(async () => (await platform.sql(`select 1 from backup where state = 'completed'`)).length === 1)
  await platform.sql(
    `update backup set stopped_at = '2026-11-01T10:00:00Z', label = $1, started_at = '2026-11-01T09:59:00Z'`,
    [label],
  )
  await platform.sql(
    `insert into sample (stretch_id, at, lsn, begin_lsn)
     select stretch.id, '2026-11-01T10:00:00Z'::timestamptz + n * interval '10 minutes',
       '0/2000000'::pg_lsn + n * 1048576, '0/2000000'::pg_lsn + n * 1048576
     from generate_series(1, 11) n, stretch where cluster_id = $1`,
    [source],
  )
  await platform.sql(
    `update stretch set from_lsn = '0/1000000', latest_at = '2026-11-01T12:00:00Z', latest_lsn = '0/2C00000'`,
  )
  await platform.sql('update cluster set retention_at = now()')
})

async function turn(): Promise<void> {
  await platform.sql("update work set run_at = now() - random() * interval '1 s', leased_until = null")
  await platform.turn()
}

async function until(holds: () => Promise<boolean>): Promise<void> {
  await untilSo(async () => {
    if (await holds()) return true
    await turn()
    return holds()
  }, 60)
}

const show = async (id: string) => (await platform.call('GET', `/v1/postgres/${id}`)).body.data
const restore = async (body: object) =>
  (await platform.call('POST', `/v1/postgres/${source}/restore`, { body })).body.data.id
const untilFailed = (id: string) => until(async () => (await show(id)).status === 'failed')
const hasNewBackup = async () =>
  (
    await platform.sql(`select 1 from backup where cluster_id = $1 and label > $2 and state = 'completed'`, [
      source,
      label,
    ])
  ).length > 0
const notes = async () =>
  (await platform.sql(`select note from event where resource_id = $1 and event = 'damage'`, [source])).map(
    (e) => e.note,
  )

const reason = 'WAL segment 000000010000000000000002 of x is missing from its archive'
const hole = { timeline: 1, fromLsn: '0/2600000', toLsn: '0/3000000', kind: 'missing', reason } as const

describe('what was put back', () => {
  const windows = async () => (await show(source)).recovery_windows
  const recheck = () => platform.sql(`update damage set checked_at = now() - interval '1 hour'`)
  const find = (found: { fromLsn: string; toLsn: string }) => {
    const wal = { ...hole, ...found, clusterId: source, epoch: 1 }
    return platform.database.db.transaction((tx) => recordDamage(tx, { wal }))
  }

  test('closes a hole: the window is whole again, and the cluster is well', async () => {
    const before = await windows()
    await find(hole)
    expect((await windows())[0].latest).toBe('2026-11-01T11:00:00Z')
    await until(async () => (await show(source)).health.status === 'degraded')
    fake.isRepaired = true
    await recheck()
    await until(async () => (await platform.sql('select 1 from damage')).length === 0)
    expect((await windows())[0]).toMatchObject({ earliest: before[0].earliest, latest: before[0].latest })
    await until(async () => (await show(source)).health.status === 'ok')
    const id = await restore({ pitr_time: '2026-11-01T11:45:00Z' })
    await until(async () => (await show(id)).status === 'ready')
    // The times in the hole have no samples, so the WAL is searched up to the end of the window.
    const [{ plan }] = await platform.sql('select plan from restore where cluster_id = $1', [id])
    expect(plan.pieces.at(-1).end).toBe('0/2C00000')
  })

  test.each([
    ['in their order', 0],
    ['the other way around', 1],
  ])('closes neighboring holes %s', async (_name, first) => {
    const before = await platform.sql('select from_lsn, latest_at, latest_lsn, ended, earliest_at from stretch')
    const parts = [
      { fromLsn: '0/2400000', toLsn: '0/2500000' },
      { fromLsn: '0/2500000', toLsn: '0/2700000' },
    ]
    for (const part of parts) await find(part)
    fake.isRepaired = true
    for (const each of first === 0 ? parts : parts.toReversed()) {
      await platform.sql(`update damage set checked_at = now() - interval '1 hour' where from_lsn = $1`, [each.fromLsn])
      await until(
        async () => (await platform.sql('select 1 from damage where from_lsn = $1', [each.fromLsn])).length === 0,
      )
    }
    const after = await platform.sql('select from_lsn, latest_at, latest_lsn, ended, earliest_at from stretch')
    expect(after).toEqual(before)
  })

  test('gives a stretch back the end that was in the hole', async () => {
    await platform.sql('update stretch set ended = true')
    const before = await windows()
    await find({ fromLsn: '0/2600000', toLsn: '0/3000000' })
    expect((await windows())[0].latest).toBe('2026-11-01T11:00:00Z')
    fake.isRepaired = true
    await recheck()
    await until(async () => (await platform.sql('select 1 from damage')).length === 0)
    expect(await windows()).toEqual(before)
  })

  test('frees a backup whose WAL was missing', async () => {
    await find({ fromLsn: '0/2000028', toLsn: '0/2000100' })
    expect(await windows()).toEqual([])
    fake.isRepaired = true
    await recheck()
    await until(async () => (await platform.sql('select 1 from backup where damage is not null')).length === 0)
    expect((await windows())[0].earliest).toBe('2026-11-01T10:00:00Z')
  })

  test('does not close a hole while its files differ from their digests', async () => {
    await find(hole)
    await recheck()
    for (let n = 0; n < 5; n++) await turn()
    expect(await platform.sql('select 1 from damage')).toHaveLength(1)
  })

  test('is a backup, which counts again once it is verified', async () => {
    fake.missingBackup = 'its directory in the repository is gone'
    await platform.sql(`update backup set verified_at = now() - interval '8 days'`)
    const isDamaged = async () =>
      (await platform.sql('select 1 from backup where label = $1 and damage is not null', [label])).length === 1
    await until(isDamaged)
    await until(async () => (await platform.sql(`select 1 from backup where recheck_at = 'infinity'`)).length === 1)
    fake.missingBackup = undefined
    await until(async () => !(await isDamaged()))
    expect((await windows())[0].earliest).toBe('2026-11-01T10:00:00Z')
  })
})

describe('a hole in the archive', () => {
  test.each([
    ['before the copy', () => Object.assign(fake, { copySeen: { is: 'failed', reason, hole } })],
    ['during replay', () => Object.assign(fake, { recoverySeen: { is: 'failed', reason, hole } })],
  ])('that a restore finds %s corrects the window, degrades the source and causes a backup', async (_name, prepare) => {
    prepare()
    const id = await restore({ pitr_time: '2026-11-01T11:45:00Z' })
    await untilFailed(id)
    expect((await show(id)).failure).toBe(reason)
    expect(await show(source)).toMatchObject({
      recovery_windows: [{ earliest: '2026-11-01T10:00:00Z', latest: '2026-11-01T11:00:00Z' }],
      health: { status: 'degraded', reason: `the archive is incomplete, and a new backup follows: ${reason}` },
    })
    expect(await platform.sql('select kind, from_lsn::text as from, reason from damage')).toEqual([
      { kind: 'missing', from: '0/2600000', reason },
    ])
    Object.assign(fake, { copySeen: undefined, recoverySeen: undefined })
    await until(hasNewBackup)
    await until(async () => (await show(source)).health.status === 'ok')
    expect(await notes()).toEqual([`the archive is incomplete, and a new backup follows: ${reason}`])
    expect(fake.slots.get(source)).toBe('berth_1')
    // Times in the hole are refused; those before it can still be restored.
    const late = await platform.call('POST', `/v1/postgres/${source}/restore`, {
      body: { pitr_time: '2026-11-01T11:45:00Z' },
    })
    expect(late.status).toBe(422)
    const early = await restore({ pitr_time: '2026-11-01T10:30:00Z' })
    await until(async () => (await show(early)).status === 'ready')
  })

  test('that a drill finds has the same effects', async () => {
    fake.recoverySeen = { is: 'failed', reason, hole }
    await platform.call('POST', `/v1/postgres/${source}/drills`, { body: {} })
    await until(async () => (await notes()).length === 1)
    fake.recoverySeen = undefined
    await until(hasNewBackup)
    expect((await show(source)).recovery_windows[0].latest).toBe('2026-11-01T11:00:00Z')
  })

  test('is recorded once, however many restores find it', async () => {
    fake.recoverySeen = { is: 'failed', reason, hole }
    const ids = [
      await restore({ pitr_time: '2026-11-01T11:45:00Z' }),
      await restore({ pitr_time: '2026-11-01T11:46:00Z' }),
    ]
    for (const id of ids) await untilFailed(id)
    fake.recoverySeen = undefined
    expect(await notes()).toHaveLength(1)
    expect(await platform.sql('select 1 from damage')).toHaveLength(1)
    await until(hasNewBackup)
    expect(await platform.sql(`select 1 from backup where cluster_id = $1`, [source])).toHaveLength(2)
  })

  test('of the records about an archive ends a restore at once', async () => {
    fake.cutProblem = new UnusableArchiveError('the seals of its archive cannot be used')
    const id = await restore({ pitr_time: '2026-11-01T11:45:00Z' })
    await untilFailed(id)
    expect((await show(id)).failure).toBe('the seals of its archive cannot be used')
    fake.cutProblem = undefined
  })

  test('in the WAL that a backup itself needs makes the backup unusable', async () => {
    fake.recoverySeen = { is: 'failed', reason, hole: { ...hole, fromLsn: '0/2000028', toLsn: '0/2000100' } }
    await untilFailed(await restore({ backup_id: label }))
    expect((await show(source)).recovery_windows).toEqual([])
    expect((await platform.call('POST', `/v1/postgres/${source}/restore`, { body: { backup_id: label } })).status).toBe(
      400,
    )
    fake.recoverySeen = undefined
    await until(hasNewBackup)
  })

  test('of a lost timeline history ends the epoch', async () => {
    fake.copySeen = {
      is: 'failed',
      reason,
      hole: { ...hole, fromLsn: '0/0', toLsn: 'FFFFFFFF/FFFFFFFF' },
    }
    await untilFailed(await restore({ pitr_time: '2026-11-01T11:45:00Z' }))
    fake.copySeen = undefined
    await until(hasNewBackup)
    expect(fake.slots.get(source)).toBe('berth_2')
    expect(
      await platform.sql(`select damage is null as intact from backup where cluster_id = $1 order by label`, [source]),
    ).toEqual([{ intact: false }, { intact: true }])
  })

  test('takes the base from a restored cluster that depends on it, until its own backup', async () => {
    fake.backupProblem = 'not now'
    const child = await restore({ pitr_time: '2026-11-01T11:45:00Z' })
    await until(async () => (await show(child)).status === 'ready')
    await platform.sql(
      `update stretch set latest_at = now() + interval '1 hour', latest_lsn = '0/4000000' where cluster_id = $1`,
      [child],
    )
    expect((await show(child)).recovery_windows).toHaveLength(1)
    fake.recoverySeen = { is: 'failed', reason, hole }
    await untilFailed(await restore({ pitr_time: '2026-11-01T11:50:00Z' }))
    expect((await show(child)).recovery_windows).toEqual([])
  })

  test('that hides the end of a deleted cluster refuses its undelete, unless the loss is accepted', async () => {
    await platform.call('DELETE', `/v1/postgres/${source}`)
    await until(async () => (await platform.sql(`select 1 from cluster where state = 'deleted'`)).length === 1)
    fake.tailProblem = new WalFileError('damaged', '000000010000000000000002', 'it cannot be read: EIO')
    const undelete = (body: object) => platform.call('POST', `/v1/postgres/${source}/undelete`, { body })
    const refused = await undelete({})
    expect(refused.status).toBe(409)
    expect(refused.body.error).toContain('it cannot be read: EIO; to restore what is intact')
    const { body } = await undelete({ accept_loss: true })
    await until(async () => (await platform.sql('select 1 from damage')).length === 1)
    expect(await platform.sql('select reason from damage')).toEqual([{ reason: 'it cannot be read: EIO' }])
    fake.tailProblem = undefined
    fake.archiveTail = { end: 0x2d00000n, newestCommit: undefined }
    await untilFailed(body.data.id)
    expect((await show(body.data.id)).failure).toBe('the source has no intact backup with its WAL any more')
  })

  test('of a deleted cluster corrects its window', async () => {
    await platform.call('DELETE', `/v1/postgres/${source}`)
    await until(async () => (await platform.sql(`select 1 from cluster where state = 'deleted'`)).length === 1)
    fake.archiveTail = { end: 0x2d00000n, newestCommit: undefined }
    fake.recoverySeen = { is: 'failed', reason, hole }
    const { body } = await platform.call('POST', `/v1/postgres/${source}/undelete`, { body: {} })
    await untilFailed(body.data.id)
    fake.recoverySeen = undefined
    const [archive] = await platform.sql(
      'select latest_lsn::text as lsn from stretch where cluster_id = $1 order by from_lsn',
      [source],
    )
    expect(archive.lsn).toBe('0/2600000')
    expect(await platform.sql(`select 1 from backup where label > $1`, [label])).toEqual([])
  })
})

describe('a damaged backup', () => {
  const damage = 'could not read file "base/1/1259": Input/output error'
  const seen = { is: 'failed', reason: `backup ${label} is damaged: ${damage}`, damage } as const

  /** Of the only backup: the source would begin a newer one. */
  async function drill() {
    await platform.call('POST', `/v1/postgres/${source}/drills`, { body: {} })
    await untilSo(async () => {
      await platform.sql(
        `update work set leased_until = null, run_at = now() + case resource_id when $1 then interval '1 hour' else '0' end`,
        [source],
      )
      await platform.turn()
      return (await notes()).length === 1
    }, 60)
  }

  test.each(['a restore', 'a drill'])('that %s finds degrades the source until a new one is made', async (who) => {
    fake.copySeen = seen
    if (who === 'a drill') await drill()
    else await untilFailed(await restore({ pitr_time: '2026-11-01T11:45:00Z' }))
    await until(async () => (await notes()).length === 1)
    expect(await show(source)).toMatchObject({
      recovery_windows: [],
      health: { status: 'degraded', reason: `backup ${label} is damaged, and a new one follows: ${damage}` },
    })
    fake.copySeen = undefined
    await until(hasNewBackup)
    if (who === 'a restore') await until(async () => (await show(source)).health.status === 'ok')
  })

  test('of an ancestor is replaced by an older one of the ancestor', async () => {
    await platform.sql(
      `insert into backup (id, cluster_id, label, state, epoch, timeline, start_lsn, stop_lsn, started_at, stopped_at, finished_at, verified_at)
       values ('older', $1, '20261031-000000F', 'completed', 1, 1, '0/1000028', '0/1000100', $2, $2, $2, now()),
         ('later', $1, '20261101-110000F', 'completed', 1, 1, '0/2A00028', '0/2A00100', $3, $3, $3, now())`,
      [source, '2026-10-31T00:00:00Z', '2026-11-01T11:00:00Z'],
    )
    fake.recovered.endLsn = '0/2500000'
    fake.backupProblem = 'not now'
    const child = await restore({ pitr_time: '2026-11-01T10:30:00Z' })
    await until(async () => (await show(child)).status === 'ready')
    await platform.sql(
      `update stretch set latest_at = now() + interval '1 hour', latest_lsn = '0/4000000' where cluster_id = $1`,
      [child],
    )
    fake.copySeen = seen
    const { latest } = (await show(child)).recovery_window
    const made = await platform.call('POST', `/v1/postgres/${child}/restore`, { body: { pitr_time: latest } })
    const isPlanned = `select plan from restore where cluster_id = $1 and plan -> 'backup' ->> 'label' = '20261031-000000F'`
    await until(async () => (await platform.sql(isPlanned, [made.body.data.id])).length === 1)
    const [{ plan }] = await platform.sql(isPlanned, [made.body.data.id])
    expect(plan.pieces).toMatchObject([{ clusterId: source, end: '0/2500000' }, { clusterId: child }])
    fake.copySeen = undefined
    await until(async () => (await show(made.body.data.id)).status === 'ready')
  })

  test('asked for by its label fails with the file and the labels of others', async () => {
    await platform.sql(
      `insert into backup (id, cluster_id, label, state, epoch, timeline, start_lsn, stop_lsn, started_at, stopped_at, finished_at, verified_at)
       values ('older', $1, '20261031-000000F', 'completed', 1, 1, '0/1000028', '0/1000100', $2, $2, $2, now())`,
      [source, '2026-10-31T00:00:00Z'],
    )
    fake.copySeen = seen
    const id = await restore({ backup_id: label })
    await untilFailed(id)
    expect((await show(id)).failure).toBe(`${seen.reason}; other backups: 20261031-000000F`)
  })
})
