import { chmodSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { accessOf, ask, createCluster, destroy, untilReady } from '../../support/client.ts'
import { until } from '../../support/until.ts'

const repository = mkdtempSync(join(tmpdir(), 'berth-repository-'))
chmodSync(repository, 0o711)
const environment = { BERTH_REPOSITORY: repository, BERTH_DRILL_INTERVAL: 'off' }
const lost = new Berth(environment)
const fresh = new Berth(environment)
const settings = { name: 'shop', pg_major_version: '17', disk_size_gb: 7, pool_mode: 'transaction', region: 'fra' }
const drillQuery = 'select count(*) > 0 from public.number'
let id = ''
let rows = 0
let returned = ''

/** Inserts another row in a transaction of its own. */
async function insert(berth: Berth, cluster: string, n: number): Promise<void> {
  await ask(await accessOf(berth, cluster), 'direct', `insert into public.number values (${n})`)
}

const numbers = async (berth: Berth, cluster: string) => {
  const [row] = await ask(
    await accessOf(berth, cluster),
    'direct',
    'select count(*)::int as count, max(n) as last from public.number',
  )
  return row
}

beforeAll(async () => {
  await lost.up()
  await lost.call('POST', '/v1/orgs', { slug: 'acme' })
  id = await createCluster(lost, { ...settings, org_slug: 'acme', drill_query: drillQuery })
  await untilReady(lost, id)
  await ask(await accessOf(lost, id), 'direct', 'create table public.number (n int primary key)')
  await insert(lost, id, ++rows)
  await until(async () => {
    const { body } = await lost.call('GET', `/v1/postgres/${id}/backups`)
    return body.data.some((backup: { status: string }) => backup.status === 'completed')
  }, 60)
  while (rows < 20) await insert(lost, id, ++rows)
  await until(() => platformFiles().some((name) => name.endsWith('.sql.gz')), 60)
  await pinBackup()
  await untilArchived()
}, 180_000)

async function pinBackup(): Promise<void> {
  const { body } = await lost.call('GET', `/v1/postgres/${id}/backups`)
  const label = body.data[0].id
  expect((await lost.call('PATCH', `/v1/postgres/${id}/backups/${label}`, { pinned: true })).status).toBe(200)
  const told = () => JSON.parse(readFileSync(`${repository}/${id}/cluster.json`, 'utf8'))
  await until(() => told().drillQuery === drillQuery && isDeepStrictEqual(told().pinned, [label]))
}

function platformFiles(): string[] {
  return existsSync(`${repository}/.platform`) ? readdirSync(`${repository}/.platform`) : []
}

/** Waits until the recovery window includes everything written so far. */
async function untilArchived(): Promise<void> {
  const written = new Date().toISOString()
  await until(async () => {
    const { body } = await lost.call('GET', `/v1/postgres/${id}`)
    return body.data.recovery_window?.latest > written
  })
}

afterAll(async () => {
  await destroy(lost)
  await destroy(fresh)
  rmSync(repository, { recursive: true, force: true })
})

test('a platform that lost everything but its repository lists no clusters', async () => {
  await destroy(lost)
  expect(existsSync(lost.home)).toBe(false)
  await fresh.up()
  expect((await fresh.call('GET', '/v1/postgres?org_slug=personal&include_deleted=true')).body.data).toEqual([])
  expect((await fresh.call('GET', '/v1/postgres?org_slug=acme')).status).toBe(404)
}, 240_000)

test('adoption recreates the records from the repository', async () => {
  const { stdout } = await fresh.cli('postgres', 'adopt', '--json')
  expect(JSON.parse(stdout)).toEqual({
    data: {
      status: 'done',
      total: 1,
      done: 1,
      adopted: [{ id, name: 'shop', backups: 1, windows: 1 }],
      known: 0,
      unusable: [],
    },
  })
  const list = await fresh.call('GET', '/v1/postgres?org_slug=acme&include_deleted=true')
  expect(list.body.data).toMatchObject([{ id, name: 'shop', status: 'deleted', region: 'fra' }])
  expect(list.body.data[0].deleted_at).toBeDefined()
})

test('adoption can be repeated without effect and requires a root token', async () => {
  const again = await fresh.cli('postgres', 'adopt')
  expect(again.stdout.trim()).toBe('Nothing to adopt: the platform already knows every cluster in the repository (1).')
  const token = await fresh.call('POST', '/v1/tokens', { kind: 'org', org_slug: 'acme' })
  const headers = { authorization: `Bearer ${token.body.token}` }
  expect(await fresh.call('POST', '/v1/postgres/adopt', {}, headers)).toMatchObject({
    status: 401,
    body: { error: 'only a root token may adopt clusters' },
  })
  expect((await fresh.call('POST', '/v1/postgres/adopt', { org_slug: 'nobody' })).status).toBe(404)
})

test('undelete restores the cluster with everything in the archive', async () => {
  const made = await fresh.call('POST', `/v1/postgres/${id}/undelete`, {})
  expect(made.status, JSON.stringify(made.body)).toBe(201)
  returned = made.body.data.id
  await untilReady(fresh, returned)
  const { data } = (await fresh.call('GET', `/v1/postgres/${returned}`)).body
  expect(data).toMatchObject({ ...settings, organization: { slug: 'acme' } })
  expect(await numbers(fresh, returned)).toEqual({ count: rows, last: rows })
}, 240_000)

test('the restored cluster works and is archived', async () => {
  await insert(fresh, returned, ++rows)
  expect(await numbers(fresh, returned)).toEqual({ count: rows, last: rows })
  await until(async () => {
    const { body } = await fresh.call('GET', `/v1/postgres/${returned}/backups`)
    return body.data.some((backup: { status: string }) => backup.status === 'completed')
  }, 60)
}, 180_000)

test('its drills run the same query as before', async () => {
  expect((await fresh.call('POST', `/v1/postgres/${returned}/drills`, {})).status).toBe(202)
  const drill = async () => (await fresh.call('GET', `/v1/postgres/${returned}/drills`)).body.data[0]
  await until(async () => (await drill()).status === 'done', 120)
  expect(await drill()).toMatchObject({ result: 'ok', answer: 't' })
}, 180_000)

test('deleting and undeleting it again loses nothing', async () => {
  await until(async () => (await fresh.call('GET', `/v1/postgres/${returned}`)).body.data.recovery_window !== null)
  await fresh.call('DELETE', `/v1/postgres/${returned}`)
  await until(async () => (await fresh.call('GET', `/v1/postgres/${returned}`)).status === 404, 60)
  const made = await fresh.call('POST', `/v1/postgres/${returned}/undelete`, { name: 'shop-again' })
  expect(made.status, JSON.stringify(made.body)).toBe(201)
  await untilReady(fresh, made.body.data.id)
  expect(await numbers(fresh, made.body.data.id)).toEqual({ count: rows, last: rows })
}, 240_000)
