// Damage to a repository is never taken for its content: a log that ends early, files of a sibling, an unfinished cluster.
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { accessOf, ask, createCluster, destroy, untilDeleted, untilReady } from '../../support/client.ts'
import { until } from '../../support/until.ts'

const repository = mkdtempSync(join(tmpdir(), 'berth-repository-'))
chmodSync(repository, 0o711)
const environment = { BERTH_REPOSITORY: repository, BERTH_DRILL_INTERVAL: 'off' }
const lost = new Berth(environment)
const fresh = new Berth(environment)
let returned = ''
const ids = { source: '', child: '', sibling: '' }

async function query(berth: Berth, id: string, sql: string) {
  return ask(await accessOf(berth, id), 'direct', sql)
}

const numbers = async (berth: Berth, id: string) =>
  (await query(berth, id, 'select count(*)::int as count, sum(n)::int as sum from public.number'))[0]

async function untilBackedUp(berth: Berth, id: string): Promise<void> {
  await until(async () => {
    const { body } = await berth.call('GET', `/v1/postgres/${id}/backups`)
    return body.data.some((backup: { status: string }) => backup.status === 'completed')
  }, 120)
}

const archive = (id: string) => `${repository}/${id}/archive/1`

function recordedEnd(id: string): bigint {
  const { end } = JSON.parse(readFileSync(`${archive(id)}.end`, 'utf8').split('\n')[0]!)
  const [high, low] = end.split('/')
  return (BigInt(`0x${high}`) << 32n) | BigInt(`0x${low}`)
}

/** Waits until the repository knows that it has everything written so far. */
async function untilRecorded(id: string): Promise<void> {
  const [row] = await query(lost, id, `select (pg_current_wal_lsn() - '0/0'::pg_lsn)::text as written`)
  await until(() => recordedEnd(id) >= BigInt(String(row!.written)), 60)
}

const segmentBytes = 16 * 1024 * 1024

/** Two restores of one source have the same system identifier, timeline and positions. */
beforeAll(async () => {
  await lost.up()
  ids.source = await createCluster(lost, { name: 'shop', pg_major_version: '17' })
  await untilReady(lost, ids.source)
  await query(lost, ids.source, 'create table public.number (n int)')
  await query(lost, ids.source, 'insert into public.number select 1 from generate_series(1, 10)')
  await untilBackedUp(lost, ids.source)
  for (const name of ['child', 'sibling'] as const)
    ids[name] = (await lost.ok('POST', `/v1/postgres/${ids.source}/fork`, { name })).data.id
  // A file in the place of the directory keeps the child without a backup of its own.
  mkdirSync(`${repository}/${ids.child}`, { recursive: true })
  writeFileSync(`${repository}/${ids.child}/backups`, '')
  await untilReady(lost, ids.child)
  await untilReady(lost, ids.sibling)
  await untilBackedUp(lost, ids.sibling)
  await query(lost, ids.child, 'insert into public.number select 2 from generate_series(1, 10)')
  await query(lost, ids.sibling, 'insert into public.number select 3 from generate_series(1, 10)')
  // More than a segment, so that both have completed one with the same name.
  const fill = 'create table public.filler as select n, md5(n::text) from generate_series(1, 700000) as n'
  for (const id of [ids.child, ids.sibling]) await query(lost, id, fill)
  await until(() => sharedSegments().length > 0, 60)
  await query(lost, ids.source, 'insert into public.number select 4 from generate_series(1, 1000)')
  for (const id of Object.values(ids)) await untilRecorded(id)
  await destroy(lost)
}, 400_000)

afterAll(async () => {
  await destroy(lost)
  await destroy(fresh)
  rmSync(repository, { recursive: true, force: true })
})

/** Complete segments of both restored clusters with the same name that have been sealed. */
function sharedSegments(): string[] {
  const sealed = (id: string) => [...readFileSync(`${archive(id)}.seals`, 'utf8').matchAll(/^([0-9A-F]{24}) /gm)]
  try {
    const others = sealed(ids.child).map(([, name]) => name!)
    return sealed(ids.sibling)
      .map(([, name]) => name!)
      .filter((name) => others.includes(name))
  } catch {
    return []
  }
}

/** Changes a bit in the middle of the last insert. */
function damageEnd(id: string): void {
  const name = readdirSync(archive(id)).find((each) => each.endsWith('.partial'))!
  const bytes = readFileSync(`${archive(id)}/${name}`)
  bytes[(Number(recordedEnd(id)) % segmentBytes) - 10_000]! ^= 1
  writeFileSync(`${archive(id)}/${name}`, bytes)
}

test('adoption reports a log that ends before its recorded end, and adopts a cluster without a backup of its own', async () => {
  damageEnd(ids.source)
  rmSync(`${repository}/${ids.child}/backups`)
  await fresh.up()
  const { stdout } = await fresh.cli('postgres', 'adopt', '--json')
  const { data } = JSON.parse(stdout)
  expect(data).toMatchObject({ status: 'done', total: 3, done: 3, unusable: [] })
  const found = (id: string) => data.adopted.find((each: { id: string }) => each.id === id)
  expect(found(ids.child)).toEqual({ id: ids.child, name: 'child', backups: 0, windows: 1 })
  expect(found(ids.sibling)).toEqual({ id: ids.sibling, name: 'sibling', backups: 1, windows: 1 })
  expect(found(ids.source).problems).toEqual([
    expect.stringMatching(
      /^its write-ahead log is damaged: it is intact up to \S+, but \S+ was reached at \S+: WAL seg/,
    ),
  ])
}, 240_000)

test('what is intact of a damaged log is restored only if the owner accepts the loss', async () => {
  const refused = await fresh.call('POST', `/v1/postgres/${ids.source}/undelete`, {})
  expect(refused).toMatchObject({ status: 409, body: { error: expect.stringContaining('accept_loss') } })
  await expect(fresh.cli('postgres', 'undelete', ids.source)).rejects.toThrow('--accept-loss')
  const { stdout } = await fresh.cli('postgres', 'undelete', ids.source, '--accept-loss', '--json')
  const { id, status, restore } = JSON.parse(stdout).data
  expect([status, restore.loss]).toEqual(['ready', expect.stringContaining('it is intact up to')])
  expect(await numbers(fresh, id)).toEqual({ count: 10, sum: 10 })
}, 240_000)

test('a restored cluster without a backup of its own is undeleted from that of its source', async () => {
  const { data } = await fresh.ok('POST', `/v1/postgres/${ids.child}/undelete`, {})
  await untilReady(fresh, data.id)
  expect(await numbers(fresh, data.id)).toEqual({ count: 20, sum: 30 })
  returned = data.id
}, 240_000)

test('what was written right before a deletion is part of the recorded end', async () => {
  // A backup switches to another segment, in which the damage must not be.
  await untilBackedUp(fresh, returned)
  await query(fresh, returned, 'insert into public.number select 5 from generate_series(1, 1000)')
  await fresh.ok('DELETE', `/v1/postgres/${returned}`)
  await untilDeleted(fresh, returned)
  await until(async () => {
    const { data } = await fresh.ok('GET', '/v1/postgres?org_slug=personal&include_deleted=true')
    return data.some((each: { id: string; deleted_at?: string }) => each.id === returned && each.deleted_at)
  }, 60)
  damageEnd(returned)
  expect(await fresh.call('POST', `/v1/postgres/${returned}/undelete`, {})).toMatchObject({
    status: 409,
    body: { error: expect.stringContaining('accept_loss') },
  })
}, 240_000)

async function failureOf(id: string, name: string): Promise<string> {
  const { data } = await fresh.ok('POST', `/v1/postgres/${id}/undelete`, { name })
  await until(async () => (await fresh.ok('GET', `/v1/postgres/${data.id}`)).data.status === 'failed', 120)
  return (await fresh.ok('GET', `/v1/postgres/${data.id}`)).data.failure
}

test('a segment or a backup of a sibling is not restored', async () => {
  const segment = sharedSegments().at(-1)!
  cpSync(`${archive(ids.sibling)}/${segment}`, `${archive(ids.child)}/${segment}`)
  expect(await failureOf(ids.child, 'with-a-foreign-segment')).toMatch(
    new RegExp(`${segment} of cluster ${ids.child} was changed or belongs to another cluster; .*accept_loss`),
  )
  const backups = readdirSync(`${repository}/${ids.sibling}/backups`)
  const [other] = readdirSync(`${repository}/${ids.source}/backups`)
  for (const label of backups) {
    rmSync(`${repository}/${ids.sibling}/backups/${label}/data`, { recursive: true })
    const foreign = `${repository}/${ids.source}/backups/${other}/data`
    cpSync(foreign, `${repository}/${ids.sibling}/backups/${label}/data`, { recursive: true })
  }
  expect(await failureOf(ids.sibling, 'with-a-foreign-backup')).toContain(
    'its manifest was changed or belongs to another',
  )
}, 240_000)
