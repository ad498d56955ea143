import { beforeEach, describe, expect, test } from 'vitest'
import { usePlatform } from '../../support/platform.ts'
import { until as untilSo } from '../../support/until.ts'

const platform = usePlatform()
const { fake } = platform

beforeEach(() => {
  fake.drillIntervalSeconds = null
})

/** Runs this many turns. Some tests make driver calls fail on purpose. */
async function look(turns: number): Promise<void> {
  for (let i = 0; i < turns; i++) {
    await platform.sql('update work set run_at = now(), leased_until = null')
    await platform.turn().catch(() => undefined)
  }
}

async function until(holds: () => Promise<boolean>): Promise<void> {
  // The label of a second backup contains the next second, so it has to pass.
  await untilSo(async () => {
    if (await holds()) return true
    await platform.sql('update work set run_at = now(), leased_until = null')
    await platform.turn().catch(() => undefined)
    return holds()
  }, 60)
}

const backupsOf = (id: string) => platform.sql('select * from backup where cluster_id = $1 order by label', [id])
const show = async (id: string) => (await platform.call('GET', `/v1/postgres/${id}`)).body.data
const completed = async (id: string) => (await backupsOf(id)).filter((row) => row.state === 'completed')

/** Makes a cluster whose first backup was last verified eight days ago. */
async function withOldBackup(): Promise<string> {
  const body = { org_slug: 'personal', plan: 'basic' }
  const { id } = (await platform.call('POST', '/v1/postgres', { body })).body.data
  await until(async () => (await completed(id)).length === 1)
  await makeOld(id)
  return id
}

/** Changes the label too, because a backup within the same second would be delayed. */
async function makeOld(id: string): Promise<void> {
  await platform.sql(
    `update backup set label = '20260101-000000F', verified_at = now() - interval '8 days' where cluster_id = $1`,
    [id],
  )
}

const notes = (id: string) => platform.sql(`select note from event where resource_id = $1 and event = 'damage'`, [id])

const isFresh = async (id: string) =>
  (await platform.sql(`select 1 from backup where cluster_id = $1 and verified_at > now() - interval '1 minute'`, [id]))
    .length === 1

describe('a kept backup', () => {
  test('is verified again after the interval, and not before', async () => {
    const id = await withOldBackup()
    await until(() => isFresh(id))
    expect(await backupsOf(id)).toMatchObject([{ damage: null, scrub_started_at: null, damaged_at: null }])
    expect(fake.scrubs.size).toBe(0)
    await look(5)
    expect(fake.scrubs.size).toBe(0)
    const { body } = await platform.call('GET', `/v1/postgres/${id}/backups`)
    expect(body.data[0].verified_at).not.toBeNull()
  })

  test('that is damaged degrades the cluster until a new one is made, which starts at once', async () => {
    const id = await withOldBackup()
    const [{ label }] = await backupsOf(id)
    fake.scrubProblem = 'base/1/1259 differs'
    await until(async () => (await backupsOf(id))[0].damage !== null)
    const cluster = await show(id)
    expect(cluster.health).toMatchObject({
      status: 'degraded',
      reason: `backup ${label} is damaged, and a new one follows: base/1/1259 differs`,
    })
    expect(cluster.recovery_window).toBeNull()
    fake.backupProblem = 'the disk is full'
    await until(async () => (await backupsOf(id)).some((row) => row.state === 'failed'))
    await look(3)
    expect((await show(id)).health.status).toBe('degraded')
    fake.backupProblem = undefined
    await platform.sql(`update backup set state_since = now() - interval '1 hour' where state = 'failed'`)
    await until(async () => (await completed(id)).length === 2)
    await until(async () => (await show(id)).health.status === 'ok')
    const { body } = await platform.call('GET', `/v1/postgres/${id}/backups`)
    expect(body.data.find((backup: { id: string }) => backup.id === label).failure).toBe('base/1/1259 differs')
    expect(await completed(id)).toHaveLength(2)
  })

  test('waits for another scrub on this host', async () => {
    const ids = [await withOldBackup(), await withOldBackup()]
    await until(async () => fake.scrubs.size > 0)
    const [reading] = [...fake.scrubs.keys()]
    await platform.sql('update work set run_at = now() + case when resource_id = $1 then $2::interval else $3 end', [
      reading,
      '1 hour',
      '0',
    ])
    await platform.turn()
    expect([...fake.scrubs.keys()]).toEqual([reading])
    for (const id of ids) await until(() => isFresh(id))
  })

  test('waits while another cluster has waited longer, so that many backups of one do not starve the others', async () => {
    const [busy, other] = [await withOldBackup(), await withOldBackup()]
    for (let day = 2; day <= 4; day++) {
      await platform.sql(
        `insert into backup (id, cluster_id, label, state, epoch, timeline, start_lsn, stop_lsn, started_at, stopped_at, finished_at, verified_at)
         select label || $2, cluster_id, '2026010' || $2 || '-000000F', state, epoch, timeline, start_lsn, stop_lsn, started_at,
           stopped_at, finished_at, verified_at - interval '1 day' from backup where cluster_id = $1 and label = '20260101-000000F'`,
        [busy, day],
      )
    }
    const order: string[] = []
    await until(async () => {
      for (const id of fake.scrubs.keys()) if (order.at(-1) !== id) order.push(id)
      return (await isFresh(other)) || order.length > 3
    })
    // The busy cluster has four due backups that are older.
    expect(order.indexOf(other)).toBeGreaterThanOrEqual(0)
    expect(order.indexOf(other)).toBeLessThanOrEqual(1)
    const due = `select 1 from backup where cluster_id = $1 and verified_at < now() - interval '1 minute'`
    expect((await platform.sql(due, [busy])).length).toBeGreaterThanOrEqual(3)
  })

  test.each(['ok', 'down'])('does not wait for a cluster whose health is %s for ever', async (health) => {
    const [first, second] = [await withOldBackup(), await withOldBackup()]
    await platform.sql('update backup set scrub_ended_at = now() where cluster_id = $1', [first])
    if (health === 'down') {
      fake.kill(second, 'FATAL: no')
      await platform.sql(`update cluster set health = 'down' where id = $1`, [second])
      await platform.sql('delete from work where resource_id = $1', [second])
    }
    await until(() => isFresh(first))
  })

  test('whose directory is gone or a link is damaged, without a job', async () => {
    const id = await withOldBackup()
    fake.missingBackup = 'its directory in the repository is gone'
    await until(async () => (await backupsOf(id))[0].damage !== null)
    expect((await backupsOf(id))[0].damage).toBe('its directory in the repository is gone')
    expect(fake.scrubs.size).toBe(0)
  })

  test('is not damaged while the repository is not mounted', async () => {
    const id = await withOldBackup()
    fake.repositoryProblem = 'the repository has no /r; is it mounted?'
    fake.scrubProblem = 'Its directory in the repository is gone'
    await look(12)
    expect(await backupsOf(id)).toMatchObject([{ damage: null }])
    fake.repositoryProblem = undefined
    fake.scrubProblem = undefined
    await until(() => isFresh(id))
    expect(await backupsOf(id)).toMatchObject([{ damage: null }])
  })

  test('does not delay the deletion of its cluster', async () => {
    const [first, second] = [await withOldBackup(), await withOldBackup()]
    await until(async () => fake.scrubs.size > 0)
    const [reading] = [...fake.scrubs.keys()]
    await platform.call('DELETE', `/v1/postgres/${reading}`)
    await until(async () => !fake.scrubs.has(reading!))
    await until(() => isFresh(reading === first ? second : first))
    expect([first, second]).toContain(reading)
  })
})

describe('the archive', () => {
  /** Prepares the archive as the sampler and the receiver would: five segments, and a minute between two samples. */
  async function withLog(id: string): Promise<void> {
    const at = (minutes: number) => `now() - interval '${60 - minutes} minutes'`
    await platform.sql(`update backup set stopped_at = ${at(0)} where cluster_id = $1`, [id])
    for (const minute of [1, 2, 3, 4]) {
      await platform.sql(
        `insert into sample (stretch_id, at, lsn, begin_lsn)
         select id, ${at(minute)}, $2, $2::pg_lsn - 16 from stretch where cluster_id = $1`,
        [id, `0/${minute + 2}000100`],
      )
    }
    await platform.sql(`update stretch set latest_at = ${at(5)}, latest_lsn = '0/7000100' where cluster_id = $1`, [id])
  }

  test('without a gap does not change', async () => {
    const id = await withOldBackup()
    await withLog(id)
    await until(() => isFresh(id))
    await look(3)
    expect(await platform.sql('select epoch from stretch where cluster_id = $1', [id])).toEqual([{ epoch: 1 }])
  })

  test('with a missing segment has a window before it, and one after it once there is a backup', async () => {
    const id = await withOldBackup()
    await withLog(id)
    fake.hole = { from: 0x5000000n, to: 0x6000000n }
    await until(() => isFresh(id))
    expect((await show(id)).health).toMatchObject({
      status: 'degraded',
      reason: `the archive is incomplete, and a new backup follows: WAL segment 000000010000000000000005 of ${id} is missing from its archive`,
    })
    await until(async () => (await completed(id)).length === 2)
    expect(fake.slots.get(id)).toBe('berth_1')
    const stretches = await platform.sql(
      `select from_lsn::text as "from", latest_lsn::text as "to", ended, after_hole as "afterHole",
         earliest_at is not null as open from stretch where cluster_id = $1 order by from_lsn`,
      [id],
    )
    expect(stretches).toMatchObject([
      { to: '0/4000100', ended: true, afterHole: false, open: true },
      { from: '0/6000000', to: '0/7000100', ended: false, afterHole: true },
    ])
  })

  test('is compared with its digests, some segments at a time, and a changed one is damage', async () => {
    const id = await withOldBackup()
    await withLog(id)
    fake.sealedFiles = [3, 4, 5, 6].map((n) => `00000001000000000000000${n}`)
    fake.alteredFile = '000000010000000000000005'
    await until(async () => (await notes(id)).length === 1)
    const damaged = `WAL file 000000010000000000000005 of ${id} differs from its recorded digest`
    expect((await show(id)).health).toMatchObject({
      status: 'degraded',
      reason: `the archive is damaged, and a new backup follows: ${damaged}`,
    })
    await until(async () => (await completed(id)).length === 2)
    await until(async () => (await backupsOf(id)).every((backup) => backup.scrub_started_at === null))
    const { recovery_windows: windows } = await show(id)
    expect(windows.length).toBeGreaterThan(0)
    expect(await platform.sql('select from_lsn::text as from, to_lsn::text as to, kind from damage')).toEqual([
      { from: '0/5000000', to: '0/6000000', kind: 'damaged' },
    ])
    // Another scrub may have begun with the new backup.
    await until(async () => fake.logScrubs.size === 0)
  })

  test('is verified from where a scrub had come when its job was killed', async () => {
    const id = await withOldBackup()
    await withLog(id)
    fake.sealedFiles = [2, 3, 4, 5, 6].map((n) => `00000001000000000000000${n}`)
    await until(async () => fake.logScrubs.size > 0)
    await platform.sql(`update backup set scrub_lsn = '0/4000000' where cluster_id = $1`, [id])
    fake.logScrubs.clear()
    await until(async () => fake.logScrubs.size > 0)
    expect([...fake.logScrubs.values()]).toEqual([[4, 5, 6].map((n) => `00000001000000000000000${n}`)])
    await until(() => isFresh(id))
    expect(await backupsOf(id)).toMatchObject([{ damage: null, scrub_started_at: null, scrub_lsn: null }])
  })

  test('is not damaged while the repository is not mounted', async () => {
    const id = await withOldBackup()
    await withLog(id)
    fake.sealedFiles = ['000000010000000000000004']
    await until(async () => fake.logScrubs.size > 0)
    fake.alteredFile = '000000010000000000000004'
    fake.repositoryProblem = 'the repository has no /r; is it mounted?'
    await look(5)
    expect(await platform.sql('select 1 from damage')).toEqual([])
    fake.repositoryProblem = undefined
    fake.alteredFile = undefined
    await until(() => isFresh(id))
    expect(await platform.sql('select 1 from damage')).toEqual([])
  })

  test('without its first segment has no recovery window', async () => {
    const id = await withOldBackup()
    await withLog(id)
    fake.hole = { from: 0n, to: 0x3000000n }
    await until(() => isFresh(id))
    expect((await show(id)).recovery_windows).toEqual([])
  })
})

test('a scrub that finds damage converges, whichever driver call fails', async () => {
  const expected = [{ damage: 'base/1/1259 differs', scrub_started_at: null }, { damage: null }]
  const id = await withOldBackup()
  for (let nth = 1; ; nth++) {
    fake.scrubProblem = 'base/1/1259 differs'
    fake.breakCall(nth)
    await until(async () => (await completed(id)).length === 2)
    expect(await backupsOf(id), `call ${nth}`).toMatchObject(expected)
    expect(fake.scrubs.size).toBe(0)
    if (fake.calls < nth) return
    await platform.sql('delete from backup where damage is not null')
    await makeOld(id)
  }
}, 300_000)
