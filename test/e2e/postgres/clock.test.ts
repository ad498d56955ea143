import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { FakeClock } from '../../support/postgres/fake-clock.ts'
import { until } from '../../support/until.ts'

const clock = new FakeClock('17')
const berth = new Berth({ BERTH_PG17_BIN: clock.bin })
beforeAll(() => berth.up())
afterAll(async () => {
  await berth.destroy()
  await clock.remove()
})

type Window = { earliest: string; latest: string }

async function show(id: string) {
  return (await berth.ok('GET', `/v1/postgres/${id}`)).data
}

async function ready(id: string): Promise<string> {
  await until(async () => {
    const { status, failure } = await show(id)
    if (status === 'failed') throw new Error(`cluster failed: ${failure}`)
    return status === 'ready'
  }, 60)
  return id
}

async function connect(id: string): Promise<pg.Client> {
  const { data } = await berth.ok('GET', `/v1/postgres/${id}/users/fly-user/credentials`)
  const { host, port } = (await show(id)).endpoints.primary.direct
  const client = new pg.Client({ host, port, user: 'fly-user', password: data.password, database: 'fly-db' })
  // A failed test leaves it open, and the platform then ends it.
  client.on('error', () => {})
  await client.connect()
  return client
}

async function newCluster() {
  const { data } = await berth.ok('POST', '/v1/postgres', {
    org_slug: 'personal',
    plan: 'basic',
    pg_major_version: '17',
  })
  const id = await ready(data.id)
  const client = await connect(id)
  await client.query('create table log (name text)')
  await until(async () => (await show(id)).recovery_window !== null, 60)
  const insert = async (name: string): Promise<Date> => {
    await client.query('insert into log values ($1)', [name])
    const { rows } = await client.query('select clock_timestamp() as at')
    // A date has milliseconds only.
    return new Date(rows[0].at.getTime() + 1)
  }
  return { id, client, insert }
}

async function names(id: string): Promise<string[]> {
  const client = await connect(id)
  try {
    return (await client.query('select name from log order by ctid')).rows.map((row) => row.name)
  } finally {
    await client.end()
  }
}

async function restored(id: string, at: Date | string): Promise<string[]> {
  const pitr_time = typeof at === 'string' ? at : at.toISOString()
  const { data } = await berth.ok('POST', `/v1/postgres/${id}/restore`, { pitr_time })
  const found = await names(await ready(data.id))
  await berth.ok('DELETE', `/v1/postgres/${data.id}`)
  return found
}

async function refusal(id: string, at: Date): Promise<string> {
  const reply = await berth.call('POST', `/v1/postgres/${id}/restore`, { pitr_time: at.toISOString() })
  expect(reply.status).toBe(422)
  return reply.body.error
}

/** The sender of the WAL reconnects after a step, which is reported first. */
async function untilReported(id: string, reason: RegExp): Promise<void> {
  await until(async () => reason.test((await show(id)).health.reason), 60)
}

async function untilCovered(id: string, at: Date): Promise<string> {
  await until(async () => Date.parse((await show(id)).recovery_window?.latest ?? 0) > at.getTime(), 60)
  return (await show(id)).recovery_window.latest
}

test('a clock that is ahead for a moment loses no commit and opens no window in the future', async () => {
  const { id, client, insert } = await newCluster()
  const before = await insert('before')
  await untilCovered(id, before)
  clock.set(600)
  const ahead = await insert('ahead')
  await untilReported(id, /^the clock of the server is (599|600) s ahead of that of the platform/)
  const inTheFuture = (await show(id)).recovery_windows.filter(({ latest }: Window) => Date.parse(latest) > Date.now())
  expect(inTheFuture).toEqual([])
  clock.set(0)
  await insert('after')
  await untilReported(id, /^the clock of the server was set back by (59\d|60\d) s/)
  const last = await insert('last')
  const latest = await untilCovered(id, last)
  expect(Date.parse(latest)).toBeLessThanOrEqual(Date.now())
  expect(await restored(id, latest)).toEqual(['before', 'ahead', 'after', 'last'])
  expect(await restored(id, last)).toEqual(['before', 'ahead', 'after', 'last'])
  expect(await restored(id, before)).toEqual(['before'])
  expect(await refusal(id, ahead)).toContain('outside the recovery window')

  await berth.ok('POST', `/v1/postgres/${id}/backups`, { type: 'full' })
  await until(async () => {
    const { data } = await berth.ok('GET', `/v1/postgres/${id}/backups`)
    return data.filter(({ status }: { status: string }) => status === 'completed').length === 2
  }, 60)
  const newest = await insert('newest')
  expect(await restored(id, await untilCovered(id, newest))).toEqual(['before', 'ahead', 'after', 'last', 'newest'])
  await client.end()
}, 300_000)

test('times that a clock went through twice are refused, and those around them are exact', async () => {
  const { id, client, insert } = await newCluster()
  const first = await insert('first')
  await until(async () => Date.parse((await show(id)).recovery_window.latest) > first.getTime() + 8000, 60)
  const second = await insert('second')
  await untilCovered(id, second)
  clock.set(-6)
  const again = await insert('again')
  expect(again.getTime()).toBeLessThan(second.getTime())
  await untilReported(id, /^the clock of the server is \d\.\d s behind that of the platform/)
  for (const repeated of [second, again]) {
    expect(await refusal(id, repeated)).toMatch(/^pitr_time is ambiguous: the clock of the cluster was changed/)
  }
  expect(await restored(id, first)).toEqual(['first'])
  const { data } = await berth.ok('POST', `/v1/postgres/${id}/fork`, {})
  expect(await names(await ready(data.id))).toEqual(['first', 'second', 'again'])
  const last = await insert('last')
  expect(await restored(id, await untilCovered(id, last))).toEqual(['first', 'second', 'again', 'last'])
  clock.set(0)
  await client.end()
}, 300_000)

test('a slow clock keeps its window', async () => {
  const { id, client, insert } = await newCluster()
  const stop = clock.slowDown()
  try {
    const first = await insert('first')
    // The clock is slowed down in steps back of about 25 ms, within which the second could be stamped before the first.
    await until(async () => {
      const { rows } = await client.query('select clock_timestamp() as at')
      return rows[0].at.getTime() > first.getTime() + 200
    })
    const second = await insert('second')
    await untilCovered(id, second)
    expect(await restored(id, first)).toEqual(['first'])
    expect(await restored(id, await untilCovered(id, second))).toEqual(['first', 'second'])
  } finally {
    stop()
    clock.set(0)
  }
  await client.end()
}, 300_000)
