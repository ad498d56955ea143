// Whatever is damaged in a repository, a restore is right, refused, or fails and names the damage.
import { randomUUID } from 'node:crypto'
import { chmodSync, globSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { accessOf, ask, destroy, readyCluster, stateDatabase, untilReady } from '../../support/client.ts'
import { truthAt } from '../../support/postgres/oracle.ts'
import {
  backUp,
  completedBackups,
  describeDifference,
  formatTime,
  inTurn,
  isSoak,
  type Major,
  majors,
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
  completeParts,
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
  major: Major
  id: string
  template: string
  sibling: string
}

/** Two restored clusters of one source; the first has three backups and several segments. */
async function prepare(major: Major): Promise<Original> {
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
  const [template, sibling] = [`${templates}/original-${major}`, `${templates}/sibling-${major}`]
  return { major, id, ...written, template, sibling }
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

type Kind = [Part, Way] | undefined

interface Case {
  original: Original
  id: string
  /** Undefined if nothing was damaged. */
  made: Made | undefined
  title: string
}

interface Copy {
  original: Original
  id: string
  kind: Kind
  isEarly: boolean
}

/** Copies are damaged before or after the platform reads them. */
async function makeCases(wanted: { original: Original; kind: Kind }[]): Promise<Case[]> {
  const copies: Copy[] = wanted.map((each) => ({ ...each, id: newId(), isEarly: random(2) === 0 }))
  const made = new Map<string, Made>()
  const apply = (isEarly: boolean) => {
    for (const { original, id, kind } of copies.filter((copy) => copy.isEarly === isEarly && copy.kind))
      made.set(id, damage(`${repository}/${id}`, original.sibling, ...kind!, random))
  }
  for (const { original, id } of copies) cloneCluster(original.template, repository, id, `copy-${original.major}-${id}`)
  apply(true)
  await berth.ok('POST', '/v1/postgres/adopt', {})
  await until(async () => (await berth.ok('GET', '/v1/postgres/adopt')).data.status === 'done', 120)
  apply(false)
  return copies.map(({ original, id, kind, isEarly }) => {
    const title = `${kind?.toReversed().join(' ')} (${made.get(id)?.file}) ${isEarly ? 'before' : 'after'} the adoption`
    return { original, id, made: made.get(id), title }
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
  // The window of an adopted cluster ends a second before its last commit.
  const covered = decisions.filter(({ micros }) => micros < decisions.at(-1)!.micros - 1_200_000n)
  const at = covered[random(covered.length)]!.micros + BigInt(random(3) - 1)
  return { path, body: { pitr_time: formatTime(at) }, expected: selectRows(all, truthAt(decisions, at)) }
}

interface Judged {
  target: Target
  made: Made | undefined
  title: string
}

async function check({ target: { path, body, expected }, made, title }: Judged, tally: Tally): Promise<void> {
  const found = await restore(berth, path, body)
  const what = `${title}: ${path} ${JSON.stringify(body)}`
  if ('hung' in found) tally.noteWrong('hung', `${what}: ${found.hung}`)
  else if ('rows' in found) {
    const isPrefix = found.rows.length < expected.length && found.rows.every((row) => expected.includes(row))
    if (found.rows.join() === expected.join()) tally.note('right')
    else tally.noteWrong(isPrefix ? 'silent' : 'wrong', `${what}: ${describeDifference(found.rows, expected)}`)
  } else if (made === undefined) {
    tally.noteWrong('other fault', `${what} was not restored: ${JSON.stringify(found)}`)
  } else if ('refused' in found) {
    if (found.status < 500) tally.note('refused')
    else tally.noteWrong('other fault', `${what}: ${found.status} ${found.refused}`)
  } else if (made.named.test(found.failed)) tally.note('failed naming the damage')
  else tally.noteWrong('other fault', `${what} failed without naming the damage: ${found.failed}`)
}

const everything = parts.flatMap((part) => ways.map((way): Kind => [part, way]))
const undamaged: Kind[] = ways.map(() => undefined)

/** Without `make soak`, the major versions share the kinds of damage, in another way each time. */
const shift = random(2)
function kindsOf(major: Major): Kind[] {
  if (isSoak) return [...everything, ...undamaged]
  return [...everything, ...undamaged].filter((_, i) => (i + Math.floor(i / 4) + shift) % 2 === majors.indexOf(major))
}

async function checkCopies(originals: Original[], tallies: Map<Major, Tally>): Promise<void> {
  const cases = await makeCases(
    originals.flatMap((original) => kindsOf(original.major).map((kind) => ({ original, kind }))),
  )
  const offset = random(4)
  // The four ways to damage each part, and the copies without damage, meet the four kinds of targets in turn.
  const targets = cases.map((each, i) => ({ each, n: i + Math.floor(i / 4) + offset }))
  for (const { each, n } of targets) if (n % 4 !== 0) await revive(each.id)
  await inTurn(
    targets.map(({ each, n }) => () => {
      const target = chooseTarget(each.original, each.original.template, each.id, n)
      return check({ ...each, target }, tallies.get(each.original.major)!)
    }),
  )
  for (const { id } of cases) rmSync(`${repository}/${id}`, { recursive: true, force: true })
}

/** Damages a file of the running cluster for the time of one restore. What was damaged before it may be named too. */
async function checkLive(original: Original, n: number, names: string[], tally: Tally): Promise<void> {
  const part = completeParts[n % completeParts.length]!
  const way = ways[random(ways.length)]!
  const target = chooseTarget(original, original.template, original.id, 1 + random(3))
  const made = damage(`${repository}/${original.id}`, original.sibling, part, way, random)
  names.push(made.named.source)
  const named = new RegExp(names.join('|'))
  try {
    await check(
      { target, made: { ...made, named }, title: `${way} ${part} (${made.file}) of a running cluster` },
      tally,
    )
  } finally {
    made.undo()
  }
}

test('damage never becomes a wrong restore', async () => {
  const originals = await Promise.all(majors.map(prepare))
  const tallies = new Map(majors.map((major) => [major, new Tally('damage', major)]))
  const rounds = isSoak ? Math.ceil(targetCount(0, 0.4) / kindsOf('17').length) : 1
  for (let round = 0; round < rounds; round++) await checkCopies(originals, tallies)
  const live = new Map(majors.map((major) => [major, new Tally('damage of a running cluster', major)]))
  await Promise.all(
    originals.map(async (original) => {
      const names: string[] = []
      for (let n = 0; n < targetCount(2, 0.05); n++)
        await checkLive(original, n + shift, names, live.get(original.major)!)
    }),
  )
  for (const tally of [...tallies.values(), ...live.values()]) {
    tally.print()
    expect.soft(tally.wrong, tally.summary).toEqual([])
  }
  for (const tally of tallies.values())
    expect(tally.count('failed naming the damage') + tally.count('refused')).toBeGreaterThan(0)
}, 14_400_000)
