import { existsSync, globSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import {
  accessOf,
  ask,
  connect,
  createCluster,
  destroy,
  postmasterPid,
  untilReady,
  ways,
} from '../../support/client.ts'
import { until } from '../../support/until.ts'

const berth = new Berth({ BERTH_DRILL_INTERVAL: 'off' })
let id = ''

const show = async (cluster = id) => (await berth.call('GET', `/v1/postgres/${cluster}`)).body.data
const backups = async () => (await berth.call('GET', `/v1/postgres/${id}/backups`)).body.data
const completed = async () => (await backups()).filter(({ status }: { status: string }) => status === 'completed')
const directory = () => `${berth.home}/clusters/${id}`

beforeAll(async () => {
  await berth.up()
  id = await createCluster(berth, { name: 'shop', pg_major_version: '17', synchronous_archive: true })
  await untilReady(berth, id, 120)
  await ask(await accessOf(berth, id), 'direct', 'create table number (n int primary key)')
  await until(async () => (await show()).recovery_window !== null)
}, 180_000)

afterAll(() => destroy(berth))

/** Inserts numbers until an insert fails; returns those that were acknowledged. */
async function writeUntilLost(first: number): Promise<number[]> {
  const session = await connect(await accessOf(berth, id), 'direct')
  session.on('error', () => undefined)
  const acknowledged: number[] = []
  try {
    for (let n = first; ; n++) {
      if (n === first + 50) rmSync(`${directory()}/data`, { recursive: true, force: true, maxRetries: 5 })
      if (n === first + 60) return acknowledged
      await session.query('insert into number values ($1)', [n])
      acknowledged.push(n)
    }
  } catch {
    return acknowledged
  } finally {
    await session.end().catch(() => undefined)
  }
}

const numbers = async (cluster = id) =>
  (await ask(await accessOf(berth, cluster), 'direct', 'select n from number order by n')).map(({ n }) => n)

test('a cluster whose files vanish is down, although its server runs, and names the command', async () => {
  const control = `${directory()}/data/global/pg_control`
  renameSync(control, `${control}.away`)
  try {
    await until(async () => (await show()).health.status === 'down', 60)
    expect((await show()).health.reason).toBe(
      `global/pg_control is missing from its data directory; run: berth postgres recover ${id}`,
    )
  } finally {
    renameSync(`${control}.away`, control)
  }
  await until(async () => (await show()).health.status === 'ok', 60)
  // A server that does not start because of a damaged file names the command too.
  const content = readFileSync(control)
  writeFileSync(control, Buffer.alloc(content.length))
  try {
    process.kill(postmasterPid(berth, id), 'SIGKILL')
    await until(async () => (await show()).health.reason.endsWith(`; run: berth postgres recover ${id}`), 60)
    expect((await show()).health.status).toBe('down')
  } finally {
    writeFileSync(control, content)
  }
  await until(async () => (await show()).health.status === 'ok', 60)
}, 120_000)

test('a cluster without its data directory is recovered in place with every acknowledged commit', async () => {
  const before = await show()
  const access = await accessOf(berth, id)
  const acknowledged = await writeUntilLost(1)
  expect(acknowledged.length).toBeGreaterThanOrEqual(50)
  await until(async () => (await show()).health.status === 'down', 60)
  expect((await show()).health.reason).toContain(`run: berth postgres recover ${id}`)

  const { stdout } = await berth.cli('postgres', 'recover', 'shop', '--yes', '--json')
  const recovered = JSON.parse(stdout).data
  expect(recovered).toMatchObject({ id, status: 'ready', restore: { phase: 'done', error: null } })
  expect(recovered.endpoints).toEqual(before.endpoints)
  expect(await accessOf(berth, id)).toEqual(access)
  expect(await numbers()).toEqual(expect.arrayContaining(acknowledged))
  for (const way of ways) await ask(access, way, `insert into number values (${way === 'direct' ? 1000 : 1001})`)

  // The window of before remains.
  const earliest = (await show()).recovery_windows[0].earliest
  expect(earliest).toBe(before.recovery_window.earliest)
  const early = (await berth.call('POST', `/v1/postgres/${id}/restore`, { pitr_time: earliest })).body.data
  await untilReady(berth, early.id, 120)
  expect(await numbers(early.id)).toEqual([])
  await berth.call('DELETE', `/v1/postgres/${early.id}`)

  await until(async () => (await show()).health.status === 'ok', 60)
  if (readdirSync(directory()).some((name) => name.startsWith('damaged-'))) {
    await berth.cli('postgres', 'recover', 'shop', '--discard', '--yes')
    expect(readdirSync(directory()).filter((name) => name.startsWith('damaged-'))).toEqual([])
  }
}, 240_000)

test('a restore uses an older backup if the newest is damaged, which the health shows until there is a new one', async () => {
  // Two since the recovery, because a backup of before is of another timeline.
  for (const _ of [1, 2]) {
    const count = (await completed()).length
    await until(async () => (await berth.call('POST', `/v1/postgres/${id}/backups`, {})).status === 202, 60)
    await until(async () => (await completed()).length > count, 60)
  }
  const newest = (await completed())[0].id
  await ask(await accessOf(berth, id), 'direct', 'insert into number values (2000)')
  const written = Date.now()
  await until(async () => Date.parse((await show()).recovery_window.latest) > written, 60)
  const data = `${berth.home}/repository/${id}/backups/${newest}/data`
  expect(existsSync(data)).toBe(true)
  rmSync(data, { recursive: true })

  const seen = new Set<string>()
  const { latest } = (await show()).recovery_window
  const { data: restored } = (await berth.call('POST', `/v1/postgres/${id}/restore`, { pitr_time: latest })).body
  await until(async () => {
    seen.add((await show()).health.reason)
    return ['ready', 'failed'].includes((await show(restored.id)).status)
  }, 120)
  expect((await show(restored.id)).status).toBe('ready')
  expect(await numbers(restored.id)).toContain(2000)
  await until(async () => (await completed())[0].id > newest, 60)
  expect([...seen]).toContain(
    `backup ${newest} is damaged, and a new one follows: its directory in the repository is gone`,
  )
  await until(async () => (await show()).health.status === 'ok', 60)
  expect((await backups()).find((backup: { id: string }) => backup.id === newest).failure).toBe(
    'its directory in the repository is gone',
  )
}, 240_000)

test('a restore that finds a hole in the archive corrects the window, and a new backup follows', async () => {
  const access = await accessOf(berth, id)
  const [current] = await ask(access, 'direct', 'select pg_walfile_name(pg_current_wal_lsn()) as file')
  const file = String(current!.file)
  await ask(access, 'direct', 'insert into number values (3000)')
  // Fills the segment.
  await ask(access, 'direct', `create table filler as select repeat('x', 1000) from generate_series(1, 40000)`)
  await until(() => globSync(`${berth.home}/repository/${id}/archive/*/${file}`).length === 1, 60)
  const written = Date.now()
  await until(async () => Date.parse((await show()).recovery_window.latest) > written, 60)
  const before = await show()
  for (const path of globSync(`${berth.home}/repository/${id}/archive/*/${file}`)) rmSync(path)

  const { latest } = before.recovery_window
  const { data: restored } = (await berth.call('POST', `/v1/postgres/${id}/restore`, { pitr_time: latest })).body
  await until(async () => (await show(restored.id)).status === 'failed', 60)
  const reason = `WAL segment ${file} of ${id} is missing from its archive`
  expect((await show(restored.id)).failure).toBe(reason)
  const found = await show()
  expect(found.recovery_windows.some((window: { latest: string }) => window.latest === latest)).toBe(false)
  await until(async () => {
    const { health, recovery_window: window } = await show()
    return health.status === 'ok' && window !== null && window.latest > latest
  }, 60)
  expect((await berth.call('POST', `/v1/postgres/${id}/restore`, { pitr_time: latest })).status).toBe(422)
}, 240_000)

test('a recovery continues after the control plane was killed, and changes nothing of a healthy cluster', async () => {
  const before = await numbers()
  // Killed at once, and while it copies or replays.
  for (const phases of [['waiting'], ['copying', 'replaying', 'finishing', 'done']]) {
    expect((await berth.call('POST', `/v1/postgres/${id}/recover`, {})).status).toBe(202)
    await until(async () => phases.includes((await show()).restore.phase), 60)
    await Promise.all(berth.children.splice(0).map((child) => end(child)))
    await berth.up()
    await untilReady(berth, id, 120)
    expect((await show()).restore).toMatchObject({ phase: 'done', error: null })
    expect(await numbers()).toEqual(before)
    // Otherwise the next recovery would lose what the new epoch has archived.
    await until(async () => (await show()).health.status === 'ok' && (await completed()).length > 0, 60)
    const now = Date.now()
    await until(async () => Date.parse((await show()).recovery_window.latest) > now, 60)
  }
  expect(readdirSync(directory()).filter((name) => name.startsWith('damaged-'))).toHaveLength(2)
}, 240_000)
