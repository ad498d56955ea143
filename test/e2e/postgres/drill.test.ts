import { closeSync, existsSync, globSync, openSync, readdirSync, readSync, writeSync } from 'node:fs'
import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import {
  accessOf,
  ask,
  attempt,
  canListen,
  controlGroups,
  createCluster,
  destroy,
  lookClosely,
  processesOf,
  stateDatabase,
  untilReady,
} from '../../support/client.ts'
import { until } from '../../support/until.ts'

const berth = new Berth({ BERTH_DRILL_INTERVAL: 'off' })
const ids: Record<string, string> = {}
let state: pg.Client

const show = async (id: string) => (await berth.call('GET', `/v1/postgres/${id}`)).body.data
const list = async (id: string) => (await berth.call('GET', `/v1/postgres/${id}/drills`)).body.data

beforeAll(async () => {
  await berth.up()
  state = stateDatabase(berth)
  await state.connect()
  for (const major of ['16', '17']) {
    ids[major] = await createCluster(berth, { name: `shop-${major}`, pg_major_version: major })
  }
  for (const id of Object.values(ids)) await prepare(id)
}, 240_000)

afterAll(async () => {
  await state?.end()
  await destroy(berth)
})

/** Writes a thousand numbers that exist at every time in the window that a drill can choose. */
async function prepare(id: string): Promise<void> {
  await untilReady(berth, id, 120)
  await ask(await accessOf(berth, id), 'direct', 'create table number as select generate_series(1, 1000) as n')
  await ask(await accessOf(berth, id), 'direct', 'alter table number add primary key (n)')
  const written = Date.now()
  await until(async () => Date.parse((await show(id)).recovery_window?.latest ?? 0) > written, 120)
  await state.query('delete from sample using stretch where stretch.id = stretch_id and cluster_id = $1', [id])
}

async function untilDone(id: string) {
  await until(async () => (await list(id))[0].status === 'done', 120)
  return (await list(id))[0]
}

async function drill(id: string, body: object = {}) {
  expect(await berth.call('POST', `/v1/postgres/${id}/drills`, body)).toMatchObject({ status: 202, body: '' })
  return untilDone(id)
}

interface Scratch {
  id: string
  ports: number[]
}

/** Finds the scratch cluster of a running drill, once it has ports. */
async function findScratch(): Promise<Scratch> {
  const found: { id: string; port: number }[] = []
  await until(async () => {
    const { rows } = await state.query(
      'select cluster.id, port from cluster join cluster_port on cluster_id = cluster.id where scratch',
    )
    found.push(...rows)
    return found.length > 0
  }, 60)
  return { id: found[0]!.id, ports: found.map(({ port }) => port) }
}

async function expectNothingLeft({ id, ports }: Scratch): Promise<void> {
  expect(readdirSync(`${berth.home}/clusters`).sort()).toEqual(Object.values(ids).sort())
  expect(existsSync(`${berth.home}/run/${id}`)).toBe(false)
  await until(() => globSync(`${berth.home}/**/*${id}*`).length === 0)
  await until(() => controlGroups(berth, id).length === 0)
  // The trash is emptied in the background.
  await until(() => processesOf(id).length === 0)
  for (const port of ports) expect(await canListen({ host: '127.0.0.1', port })).toBe(true)
  expect((await state.query('select 1 from cluster where scratch')).rows).toEqual([])
  expect((await state.query('select 1 from pin')).rows).toEqual([])
}

const question = 'select count(*), session_user, pg_is_in_recovery() from number'

describe.each(['16', '17'])('a drill of PostgreSQL %s', (major) => {
  test('restores, checks and queries a cluster that is closed to clients, and leaves nothing behind', {
    timeout: 180_000,
  }, async () => {
    const id = ids[major]!
    const running = berth.cli('postgres', 'drill', `shop-${major}`, '--query', question)
    const scratch = await findScratch()
    const access = await accessOf(berth, id)
    const entries: (true | string)[] = []
    while ((await list(id))[0].status !== 'done') {
      for (const port of scratch.ports) {
        const place = { ...access, direct: { host: '127.0.0.1', port } }
        entries.push(await attempt(place, 'direct'), await attempt(place, 'direct', 'select 1', { user: 'postgres' }))
      }
    }
    expect(entries.length).toBeGreaterThan(0)
    expect(entries).not.toContain(true)
    const { stdout, stderr } = await running
    expect(stdout).toMatch(/^result +ok\nrestored to +\S+Z\ntook +\S+ s\nanswer\n1000\|fly-user\|f\n$/)
    expect(stderr).toMatch(new RegExp(`^(Drill of shop-${major}: .+ \\(\\d+ s\\)\\n)+$`))
    const [last] = await list(id)
    expect(last).toMatchObject({ status: 'done', result: 'ok', answer: '1000|fly-user|f' })
    const shown = await show(id)
    expect(shown.last_drill).toMatchObject({ result: 'ok', answer: '1000|fly-user|f', target: last.target })
    expect(shown).toMatchObject({ status: 'ready', health: { status: 'ok' } })
    expect((await berth.cli('postgres', 'drills', `shop-${major}`)).stdout).toMatch(/ done +\S+Z +\S+ s +ok\n$/)
    await expectNothingLeft(scratch)
  })
})

test('a drill does not wait for locks of prepared transactions', { timeout: 180_000 }, async () => {
  const id = ids['17']!
  const access = await accessOf(berth, id)
  const lock = `begin; lock table number in access exclusive mode; prepare transaction 'it''s open'`
  await ask(access, 'direct', lock)
  const locked = Date.now()
  await until(async () => Date.parse((await show(id)).recovery_window.latest) > locked, 120)
  // From now on a drill chooses only such times.
  expect(await drill(id, { drill_query: 'select 1' })).toMatchObject({ result: 'ok' })
  await ask(access, 'direct', `rollback prepared 'it''s open'`)
})

describe('the drill query', () => {
  test('runs only as SQL of the default user', { timeout: 180_000 }, async () => {
    const id = ids['17']!
    const mark = `${berth.home}/run/escaped`
    expect(await drill(id, { drill_query: `\\! touch ${mark}` })).toMatchObject({
      result: expect.stringMatching(/^failed: the drill query failed: ERROR: {2}syntax error at or near "\\"/),
    })
    expect(existsSync(mark)).toBe(false)
    expect(await drill(id, { drill_query: 'set session authorization postgres' })).toMatchObject({
      result: 'failed: the drill query failed: ERROR:  permission denied to set session authorization "postgres"',
    })
    const told = 'the last restore drill failed: the drill query failed: ERROR:  permission denied'
    await until(async () => (await show(id)).health.reason.startsWith(told))
    expect((await show(id)).health.status).toBe('degraded')
    const long = await drill(id, { drill_query: `select repeat('ä', 100000)` })
    expect(long).toMatchObject({ result: 'ok', answer: 'ä'.repeat(5000) })
    await until(async () => (await show(id)).health.status === 'ok')
    expect(await drill(id, { drill_query: null })).toMatchObject({ result: 'ok' })
  })
})

function flipByte(file: string): void {
  const descriptor = openSync(file, 'r+')
  const byte = Buffer.alloc(1)
  readSync(descriptor, byte, 0, 1, 4711)
  writeSync(descriptor, Buffer.from([byte[0]! ^ 0xff]), 0, 1, 4711)
  closeSync(descriptor)
}

test('a drill finds a flipped byte in the only backup, reports it, causes a new backup, and leaves nothing behind', {
  timeout: 180_000,
}, async () => {
  const id = ids['17']!
  const newest = async () => (await berth.call('GET', `/v1/postgres/${id}/backups`)).body.data[0]
  const backup = await newest()
  const files = globSync(`${berth.home}/repository/${id}/**/${backup.id}/**/base/1/1259`)
  expect(files).toHaveLength(1)
  flipByte(files[0]!)
  expect((await berth.call('POST', `/v1/postgres/${id}/drills`, {})).status).toBe(202)
  const scratch = await findScratch()
  const { result } = await untilDone(id)
  expect(result).toBe(`failed: backup ${backup.id} is damaged: checksum mismatch for file "base/1/1259"`)
  await until(async () => {
    const { id: label, status } = await newest()
    return label !== backup.id && status === 'completed'
  })
  // The health shows the result until a drill passes.
  await until(async () => {
    await lookClosely(berth, id)
    return (await show(id)).health.reason === `the last restore drill ${result}`
  })
  const shown = await show(id)
  expect(shown.health.status).toBe('degraded')
  expect(shown.last_drill).toMatchObject({ result })
  await expectNothingLeft(scratch)
})
