import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { type Decided, readDecisions, truthAt, Workload } from '../../support/oracle.ts'
import { until } from '../../support/until.ts'

/** The number of restores: a dozen here, hundreds with `make soak`. */
const targetCount = Number(process.env.BERTH_SOAK_TARGETS ?? 12)
const writeSeconds = Number(process.env.BERTH_SOAK_SECONDS ?? 4)

// With `make soak` it has more clusters at a time than an organization may have by default.
const berth = new Berth({ BERTH_QUOTAS: 'clusters=unlimited,disk_gb=unlimited' })
beforeAll(() => berth.up())
afterAll(() => berth.destroy())

async function getCluster(id: string) {
  return (await berth.call('GET', `/v1/postgres/${id}`)).body.data
}

async function ready(id: string) {
  let cluster = await getCluster(id)
  await until(async () => {
    cluster = await getCluster(id)
    if (cluster.status === 'failed') throw new Error(`cluster failed: ${cluster.failure}`)
    return cluster.status === 'ready'
  }, 120)
  return cluster
}

async function connectionOf(id: string): Promise<pg.ClientConfig> {
  const { endpoints } = await getCluster(id)
  const { body } = await berth.call('GET', `/v1/postgres/${id}/users/fly-user/credentials`)
  const { host, port } = endpoints.primary.direct
  return { host, port, user: 'fly-user', password: body.data.password, database: 'fly-db' }
}

async function superuserOf(id: string): Promise<pg.Client> {
  const { endpoints } = await getCluster(id)
  const client = new pg.Client({
    host: `${berth.home}/run/${id}`,
    port: endpoints.primary.direct.port,
    user: 'postgres',
    database: 'postgres',
  })
  await client.connect()
  return client
}

async function rowsOf(id: string): Promise<string[]> {
  const client = new pg.Client(await connectionOf(id))
  await client.connect()
  try {
    const { rows } = await client.query(`select writer || '/' || n || '@' || xid as row from log order by writer, n`)
    return rows.map((row) => row.row)
  } catch (err) {
    if ((err as { code?: string }).code === '42P01') return [] // the target is before the creation of the table
    throw err
  } finally {
    await client.end()
  }
}

const xidOf = (row: string) => BigInt(row.split('@')[1]!)

/** Writes the same time with different UTC offsets. */
function write(micros: bigint, offsetMinutes: number): string {
  const local = micros + BigInt(offsetMinutes) * 60_000_000n
  const whole = new Date(Number(local / 1000n)).toISOString().slice(0, 19)
  const fraction = (((local % 1_000_000n) + 1_000_000n) % 1_000_000n).toString().padStart(6, '0')
  const size = Math.abs(offsetMinutes)
  const pad = (value: number) => String(value).padStart(2, '0')
  return `${whole}.${fraction}${offsetMinutes < 0 ? '-' : '+'}${pad(Math.floor(size / 60))}:${pad(size % 60)}`
}

function micros(time: string): bigint {
  const [whole, fraction = ''] = time.replace('Z', '').split('.')
  return BigInt(Date.parse(`${whole}Z`)) * 1000n + BigInt(fraction.padEnd(6, '0'))
}

async function prepared(major: string) {
  const made = await berth.call('POST', '/v1/postgres', {
    org_slug: 'personal',
    plan: 'basic',
    pg_major_version: major,
  })
  const id = made.body.data.id
  await ready(id)
  await until(async () => (await getCluster(id)).recovery_window !== null, 60)
  const superuser = await superuserOf(id)
  const { rows } = await superuser.query('select pg_current_wal_insert_lsn() as lsn')
  const workload = new Workload(await connectionOf(id))
  await workload.prepare()
  workload.start()
  await new Promise((resolve) => setTimeout(resolve, (writeSeconds * 1000) / 2))
  // A backup in the middle of the writes, which is a restore target too.
  await berth.call('POST', `/v1/postgres/${id}/backups`, { type: 'full' })
  await new Promise((resolve) => setTimeout(resolve, (writeSeconds * 1000) / 2))
  await until(async () => (await rowsOf(id)).length > 200, 120)
  await workload.stop()
  const backups = await until2(async () => {
    const { body } = await berth.call('GET', `/v1/postgres/${id}/backups`)
    return (
      body.data.every((backup: { status: string }) => backup.status === 'completed') &&
      body.data.length === 2 &&
      body.data
    )
  })
  const decisions = await readDecisions(superuser, rows[0].lsn)
  await superuser.end()
  const last = decisions.at(-1)!.micros
  await until(async () => micros((await getCluster(id)).recovery_window.latest) > last + 1_000_000n, 60)
  return { id, decisions, backups, window: (await getCluster(id)).recovery_window, all: await rowsOf(id) }
}

async function until2<T>(look: () => Promise<T | false>): Promise<T> {
  let found: T | false = false
  await until(async () => {
    found = await look()
    return found !== false
  }, 60)
  return found as T
}

/** Chooses edge cases as target times; the rest is random. */
function chooseTargets(
  decisions: Decided[],
  window: { earliest: string; latest: string },
  backup: { started_at: string; finished_at: string },
): bigint[] {
  const [earliest, latest] = [micros(window.earliest), micros(window.latest)]
  const pick = () => decisions[Math.floor(Math.random() * decisions.length)]!.micros
  const inBackup = (micros(backup.started_at) + micros(backup.finished_at)) / 2n
  const corners = [
    earliest,
    latest,
    latest - 1n,
    decisions.at(-1)!.micros,
    decisions.at(-1)!.micros + 500_000n,
    inBackup,
  ]
  const random = Array.from({ length: Math.max(0, targetCount - corners.length) }, (_, i) => {
    const at = pick()
    return [at, at - 1n, at + 1n, at + BigInt(Math.floor(Math.random() * 20_000))][i % 4]!
  })
  return [...corners, ...random].filter((target) => target >= earliest && target <= latest)
}

describe.each(['16', '17'])('PostgreSQL %s', (major) => {
  test('every restore contains exactly what was committed at its target time', async () => {
    const { id, decisions, backups, window, all } = await prepared(major)
    expect(decisions.length).toBeGreaterThan(100)
    const targets = chooseTargets(decisions, window, backups[0])
    const offsets = [0, 60, 345, -210, 1439, -1439]
    for (let i = 0; i < targets.length; i += 3) {
      await Promise.all(
        targets.slice(i, i + 3).map(async (target, k) => {
          const pitr_time = write(target, offsets[(i + k) % offsets.length]!)
          const made = await berth.call('POST', `/v1/postgres/${id}/restore`, { pitr_time })
          expect(made.status, `${pitr_time}: ${JSON.stringify(made.body)}`).toBe(201)
          const restored = made.body.data.id
          await ready(restored)
          const truth = truthAt(decisions, target)
          const expected = all.filter((row) => truth.has(xidOf(row)))
          expect(await rowsOf(restored), pitr_time).toEqual(expected)
          await berth.call('DELETE', `/v1/postgres/${restored}`)
        }),
      )
    }
    expect(await rowsOf(id)).toEqual(all)
  }, 600_000)

  test('a restored backup contains the state at its end, and nothing later', async () => {
    const made = await berth.call('POST', '/v1/postgres', {
      org_slug: 'personal',
      plan: 'basic',
      pg_major_version: major,
    })
    const id = made.body.data.id
    await ready(id)
    const client = new pg.Client(await connectionOf(id))
    await client.connect()
    try {
      await backUp(id, 1)
      await client.query('create table log (writer int, n int, xid xid8 default pg_current_xact_id())')
      await client.query('insert into log values (1, 1)')
      await backUp(id, 2)
      await client.query('insert into log values (1, 2)')
    } finally {
      await client.end()
    }
    const [newest, oldest] = (await berth.call('GET', `/v1/postgres/${id}/backups`)).body.data
    const rows = await Promise.all([oldest, newest].map((backup) => restoredRows(id, { backup_id: backup.id })))
    expect(rows.map((found) => found.map((row) => row.split('@')[0]))).toEqual([[], ['1/1']])
    const fork = (await berth.call('POST', `/v1/postgres/${id}/fork`, {})).body.data.id
    await ready(fork)
    expect(await rowsOf(fork)).toEqual(await rowsOf(id))
  }, 300_000)
})

/** Waits until the cluster has this many completed backups; requests one if necessary. */
async function backUp(id: string, count: number): Promise<void> {
  if (count > 1) await berth.call('POST', `/v1/postgres/${id}/backups`, { type: 'full' })
  await until(async () => {
    const { body } = await berth.call('GET', `/v1/postgres/${id}/backups`)
    return body.data.filter((backup: { status: string }) => backup.status === 'completed').length >= count
  }, 60)
}

async function restoredRows(id: string, target: object): Promise<string[]> {
  const made = await berth.call('POST', `/v1/postgres/${id}/restore`, target)
  await ready(made.body.data.id)
  return rowsOf(made.body.data.id)
}
