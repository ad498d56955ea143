// Whatever is damaged in a repository, a restore is right, refused, or fails and names the damage.
import { randomUUID } from 'node:crypto'
import { chmodSync, globSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { accessOf, ask, destroy, readyCluster, stateDatabase, untilReady } from '../../support/client.ts'
import { truthAt } from '../../support/postgres/oracle.ts'
import {
  backUp,
  completedBackups,
  describeDifference,
  formatTime,
  inTurn,
  majorsOf,
  pause,
  random,
  restore,
  seconds,
  selectRows,
  superuserOf,
  Tally,
  targetCount,
  unlimited,
  type Written,
  writeDuring,
} from '../../support/postgres/oracle-platform.ts'
import {
  cloneCluster,
  damage,
  type Made,
  type Part,
  parts,
  takeTemplate,
  type Way,
  ways,
} from '../../support/postgres/repository-damage.ts'
import { until } from '../../support/until.ts'

const repository = mkdtempSync(join(tmpdir(), 'berth-repository-'))
chmodSync(repository, 0o711)
const templates = `${repository}/.templates`
mkdirSync(templates)
const berth = new Berth({ ...unlimited, BERTH_REPOSITORY: repository, BERTH_SCRUB_INTERVAL: '1000d' })
let state: pg.Client

beforeAll(async () => {
  await berth.up()
  state = stateDatabase(berth)
  await state.connect()
})

afterAll(async () => {
  await state?.end()
  await destroy(berth)
  rmSync(repository, { recursive: true, force: true })
})

interface Original extends Written {
  template: string
  sibling: string
}

/** Two restored clusters of one source; the first has three backups and several segments. */
async function prepare(major: string): Promise<Original> {
  const source = await readyCluster(berth, { pg_major_version: major })
  await until(async () => (await completedBackups(berth, source)).length > 0, 120)
  const ids: string[] = []
  for (const name of ['original', 'sibling'])
    ids.push((await berth.ok('POST', `/v1/postgres/${source}/fork`, { name: `${name}-${major}` })).data.id)
  for (const id of ids) {
    await untilReady(berth, id)
    await until(async () => (await completedBackups(berth, id)).length > 0, 120)
  }
  const [id, other] = ids as [string, string]
  await fillSibling(other)
  const written = await writeDuring(berth, id, async (superuser) => {
    for (let n = 0; n < 4; n++) {
      await pause((seconds * 1000) / 5)
      await superuser.query('select pg_switch_wal()')
      if (n === 0 || n === 2) await backUp(berth, id)
    }
    await pause((seconds * 1000) / 5)
  })
  await untilRecorded(id)
  await untilRecorded(other)
  takeTemplate(`${repository}/${id}`, `${templates}/original-${major}`)
  takeTemplate(`${repository}/${other}`, `${templates}/sibling-${major}`)
  return { ...written, template: `${templates}/original-${major}`, sibling: `${templates}/sibling-${major}` }
}

async function fillSibling(id: string): Promise<void> {
  await ask(await accessOf(berth, id), 'direct', 'create table log (writer int, n int, xid xid8)')
  const superuser = await superuserOf(berth, id)
  for (let n = 0; n < 6; n++) {
    await ask(await accessOf(berth, id), 'direct', `insert into log select 9, ${n}, '9' from generate_series(1, 1000)`)
    // The last segment remains a partial one.
    if (n < 5) await superuser.query('select pg_switch_wal()')
  }
  await superuser.end()
}

const lsnOf = (text: string) => {
  const [high, low] = text.split('/')
  return (BigInt(`0x${high}`) << 32n) | BigInt(`0x${low}`)
}

/** Waits until the end is recorded, and each complete segment is sealed. */
async function untilRecorded(id: string): Promise<void> {
  const superuser = await superuserOf(berth, id)
  const { rows } = await superuser.query('select pg_current_wal_lsn() as lsn')
  await superuser.end()
  const archive = `${repository}/${id}/archive/1`
  const read = (kind: string) => readFileSync(`${archive}.${kind}`, 'utf8')
  await until(() => lsnOf(JSON.parse(read('end').split('\n')[0]!).end) >= lsnOf(rows[0].lsn), 60)
  const complete = globSync('*[0-9A-F]', { cwd: archive }).filter((name) => name.length === 24)
  await until(() => complete.every((name) => read('seals').includes(name)), 60)
}

interface Case {
  id: string
  made: Made
  title: string
}

/** Copies are damaged before or after the platform reads them, in turn. */
async function makeCases(original: Original, major: string, kinds: [Part, Way][]): Promise<Case[]> {
  const made = new Map<string, Made>()
  const cases = kinds.map(([part, way], i) => ({ id: newId(), part, way, isEarly: random(2) === 0, i }))
  const apply = ({ id, part, way }: { id: string; part: Part; way: Way }) => {
    const done = damage(`${repository}/${id}`, original.sibling, part, way, random)
    if (!done) throw new Error(`the repository has no ${part}`)
    made.set(id, done)
  }
  for (const { id, i } of cases) cloneCluster(original.template, repository, id, `copy-${major}-${i}-${random(1e6)}`)
  for (const each of cases) if (each.isEarly) apply(each)
  await berth.ok('POST', '/v1/postgres/adopt', {})
  await until(async () => (await berth.ok('GET', '/v1/postgres/adopt')).data.status === 'done', 120)
  for (const each of cases) if (!each.isEarly) apply(each)
  return cases.map(({ id, part, way, isEarly }) => {
    const file = made.get(id)!
    const when = isEarly ? 'before' : 'after'
    return { id, made: file, title: `${way} ${part} (${file.file}) ${when} the adoption` }
  })
}

/** Ids of clusters have 16 letters and digits. */
const newId = () => randomUUID().replaceAll('-', '').slice(0, 16)

/** Adopted clusters are deleted ones, which can only be restored as a whole. This makes it one that failed. */
async function revive(id: string): Promise<void> {
  await state.query(`update cluster set state = 'failed', deleted_at = null where id = $1`, [id])
}

interface Target {
  path: string
  body: object
  expected: string[]
}

function chooseTarget({ all, decisions }: Original, template: string, id: string, n: number): Target {
  const path = `/v1/postgres/${id}/${n % 4 === 0 ? 'undelete' : 'restore'}`
  if (n % 4 === 0) return { path, body: {}, expected: all }
  if (n % 4 === 2) {
    const described = globSync('backups/*/backup.json', { cwd: template })
    const { label, stopLsn } = JSON.parse(readFileSync(`${template}/${described[random(described.length)]}`, 'utf8'))
    const before = decisions.filter(({ lsn, committed }) => committed && lsn <= lsnOf(stopLsn))
    return { path, body: { backup_id: label }, expected: selectRows(all, new Set(before.map(({ xid }) => xid))) }
  }
  const at = decisions[random(decisions.length)]!.micros + BigInt(random(3) - 1)
  return { path, body: { pitr_time: formatTime(at) }, expected: selectRows(all, truthAt(decisions, at)) }
}

async function check(original: Original, { id, made, title }: Case, n: number, tally: Tally): Promise<void> {
  const { path, body, expected } = chooseTarget(original, original.template, id, n)
  if (n % 4 !== 0) await revive(id)
  const found = await restore(berth, path, body)
  const what = `${title}: ${path} ${JSON.stringify(body)}`
  if ('rows' in found) {
    const isPrefix = found.rows.length < expected.length && found.rows.every((row) => expected.includes(row))
    if (found.rows.join() === expected.join()) tally.note('right')
    else tally.noteWrong(isPrefix ? 'silent' : 'wrong', `${what}: ${describeDifference(found.rows, expected)}`)
  } else if ('refused' in found) {
    if (found.status < 500) tally.note('refused')
    else tally.noteWrong('server error', `${what}: ${found.refused}`)
  } else if (made.named.test(found.failed)) tally.note('failed naming the damage')
  else tally.noteWrong('failed without naming the damage', `${what}: ${found.failed}`)
}

describe.each(majorsOf('16'))('PostgreSQL %s', (major) => {
  test('damage never becomes a wrong restore', async () => {
    const original = await prepare(major)
    const kinds = parts.flatMap((part) => ways.map((way): [Part, Way] => [part, way]))
    const rounds = Math.ceil(targetCount(kinds.length, 0.4) / kinds.length)
    const tally = new Tally(`oracle-damage ${major}`)
    for (let round = 0; round < rounds; round++) {
      const cases = await makeCases(original, major, kinds)
      const offset = random(4)
      await inTurn(cases.map((each, i) => () => check(original, each, i + Math.floor(i / 4) + offset, tally)))
      for (const { id } of cases) rmSync(`${repository}/${id}`, { recursive: true, force: true })
    }
    tally.print()
    expect(tally.wrong).toEqual([])
    expect(tally.count('right')).toBeGreaterThan(0)
  }, 7_200_000)
})
