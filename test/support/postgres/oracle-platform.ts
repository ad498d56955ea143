// Restores clusters of a real platform and compares the rows of each with what its write-ahead log says.
import { appendFileSync } from 'node:fs'
import pg from 'pg'
import type { Berth } from '../berth.ts'
import { accessOf, connect, stateDatabase } from '../client.ts'
import { until } from '../until.ts'
import { type Decided, readDecisions, Workload } from './oracle.ts'

export const seconds = Number(process.env.BERTH_SOAK_SECONDS ?? 4)

/** The number of restores: a few here, hundreds with `make soak`. */
export function targetCount(fewest: number, share = 1): number {
  const asked = process.env.BERTH_SOAK_TARGETS
  return asked === undefined ? fewest : Math.ceil(Number(asked) * share)
}

export const majors = ['16', '17'] as const
export type Major = (typeof majors)[number]

/** Without `make soak`, the major versions share what is tested. */
export const isSoak = process.env.BERTH_SOAK_TARGETS !== undefined

/** With `make soak` it has more clusters at a time than an organization may have by default. */
export const unlimited = { BERTH_QUOTAS: 'clusters=unlimited,disk_gb=unlimited', BERTH_DRILL_INTERVAL: 'off' }

export const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

export type Restored = { rows: string[] } | { refused: string; status: number } | { failed: string } | { hung: string }

/** Above the deadline after which the platform itself gives up a restore that makes no progress. */
const restoreSeconds = 420

/** Asks for a restored cluster, reads its rows and deletes it. */
export async function restore(berth: Berth, path: string, body: object): Promise<Restored> {
  const made = await berth.call('POST', path, body)
  if (made.status !== 201) return { refused: made.body.error ?? JSON.stringify(made.body), status: made.status }
  const { id } = made.body.data
  try {
    const cluster = await untilSettled(berth, id)
    if (cluster.status === 'ready') return { rows: await rowsOf(berth, id) }
    return cluster.status === 'failed' && !/no progress in/.test(cluster.failure)
      ? { failed: cluster.failure }
      : { hung: await explainHang(berth, id, cluster) }
  } finally {
    await berth.call('DELETE', `/v1/postgres/${id}`)
  }
}

async function untilSettled(berth: Berth, id: string) {
  const deadline = performance.now() + restoreSeconds * 1000
  for (;;) {
    const cluster = await show(berth, id)
    if (['ready', 'failed'].includes(cluster.status) || performance.now() > deadline) return cluster
    await pause(20)
  }
}

async function explainHang(berth: Berth, id: string, { failure, restore }: { failure?: string; restore: object }) {
  const db = stateDatabase(berth)
  await db.connect()
  const { rows } = await db.query('select * from work where resource_id = $1', [id]).finally(() => db.end())
  const log = berth.output.split('\n').filter((line) => line.includes(id) && !line.includes('request completed'))
  return [failure ?? 'it did not end', JSON.stringify(restore), JSON.stringify(rows), ...log.slice(-20)].join('\n')
}

export async function show(berth: Berth, id: string) {
  return (await berth.ok('GET', `/v1/postgres/${id}`)).data
}

export async function rowsOf(berth: Berth, id: string): Promise<string[]> {
  const client = await connect(await accessOf(berth, id), 'direct')
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

export function selectRows(all: string[], xids: Set<bigint>): string[] {
  return all.filter((row) => xids.has(BigInt(row.split('@')[1]!)))
}

export async function superuserOf(berth: Berth, id: string): Promise<pg.Client> {
  const { endpoints } = await show(berth, id)
  const { port } = endpoints.primary.direct
  const client = new pg.Client({ host: `${berth.home}/run/${id}`, port, user: 'postgres', database: 'postgres' })
  // A failed test leaves it open, and the platform then ends it.
  client.on('error', () => {})
  await client.connect()
  return client
}

export async function backUp(berth: Berth, id: string): Promise<void> {
  const before = (await completedBackups(berth, id)).length
  await until(async () => (await berth.call('POST', `/v1/postgres/${id}/backups`, { type: 'full' })).status === 202)
  await until(async () => (await completedBackups(berth, id)).length > before, 120)
}

/** Newest first. */
export async function completedBackups(berth: Berth, id: string) {
  const { data } = await berth.ok('GET', `/v1/postgres/${id}/backups`)
  return data.filter(({ status }: { status: string }) => status === 'completed')
}

export interface Written {
  decisions: Decided[]
  all: string[]
}

/** Writes while `during` runs, then reads the log. */
export async function writeDuring(
  berth: Berth,
  id: string,
  during: (superuser: pg.Client) => Promise<void>,
): Promise<Written> {
  const superuser = await superuserOf(berth, id)
  try {
    // Backups make checkpoints, which remove WAL that is to be read afterwards.
    await superuser.query(`alter system set wal_keep_size = '4GB'`)
    await superuser.query('select pg_reload_conf()')
    const { rows } = await superuser.query('select pg_current_wal_insert_lsn() as lsn')
    const { direct, user, password } = await accessOf(berth, id)
    const workload = new Workload({ ...direct, user, password, database: 'fly-db' })
    await workload.prepare()
    workload.start()
    try {
      await during(superuser)
      await until(async () => (await rowsOf(berth, id)).length > 200, 120)
    } finally {
      await workload.stop()
    }
    return { decisions: await readDecisions(superuser, rows[0].lsn), all: await rowsOf(berth, id) }
  } finally {
    await superuser.end()
  }
}

/** Writes the same time with different UTC offsets. */
export function formatTime(micros: bigint, offsetMinutes = 0): string {
  const local = micros + BigInt(offsetMinutes) * 60_000_000n
  const whole = new Date(Number(local / 1000n)).toISOString().slice(0, 19)
  const fraction = (((local % 1_000_000n) + 1_000_000n) % 1_000_000n).toString().padStart(6, '0')
  const size = Math.abs(offsetMinutes)
  const pad = (value: number) => String(value).padStart(2, '0')
  return `${whole}.${fraction}${offsetMinutes < 0 ? '-' : '+'}${pad(Math.floor(size / 60))}:${pad(size % 60)}`
}

export function parseMicros(time: string): bigint {
  const [whole, fraction = ''] = time.replace('Z', '').split('.')
  return BigInt(Date.parse(`${whole}Z`)) * 1000n + BigInt(fraction.padEnd(6, '0'))
}

/** A random whole number below the limit. */
export function random(limit: number): number {
  return Math.floor(Math.random() * limit)
}

/** Runs the tasks, three at a time. */
export async function inTurn(tasks: (() => Promise<void>)[]): Promise<void> {
  const waiting = [...tasks]
  const work = async () => {
    for (let task = waiting.shift(); task; task = waiting.shift()) await task()
  }
  await Promise.all([work(), work(), work()])
}

/** How targets ended. Anything else than the first three is a fault. */
export type Outcome = 'right' | 'refused' | 'failed naming the damage' | 'wrong' | 'silent' | 'hung' | 'other fault'

/** Counts how the targets of one kind ended, and keeps what must not happen. */
export class Tally {
  readonly wrong: string[] = []
  private readonly counts = new Map<Outcome, number>()
  private readonly kind: string
  private readonly major: Major

  constructor(kind: string, major: Major) {
    this.kind = kind
    this.major = major
  }

  note(outcome: 'right' | 'refused' | 'failed naming the damage'): void {
    this.add(outcome)
  }

  noteWrong(outcome: 'wrong' | 'silent' | 'hung' | 'other fault', what: string): void {
    this.add(outcome, what)
    this.wrong.push(`${outcome}: ${what}`)
  }

  /** The first line of each fault, for the message of an assertion. */
  get summary(): string {
    return this.wrong.map((what) => what.split('\n')[0]).join(' | ')
  }

  count(outcome: Outcome): number {
    return this.counts.get(outcome) ?? 0
  }

  /** Also into the file from which `make soak` makes its summary, so that one that is interrupted has a summary too. */
  private add(outcome: Outcome, what?: string): void {
    this.counts.set(outcome, this.count(outcome) + 1)
    const file = process.env.BERTH_SOAK_RESULTS
    const { kind, major } = this
    if (file !== undefined) appendFileSync(file, `${JSON.stringify({ kind, major, outcome, what })}\n`)
  }

  print(): void {
    const total = [...this.counts.values()].reduce((sum, count) => sum + count, 0)
    const parts = [...this.counts].map(([outcome, count]) => `${count} ${outcome}`)
    console.info(`oracle of ${this.kind}, PostgreSQL ${this.major}: ${total} targets, ${parts.join(', ')}`)
  }
}

/** The rows that are missing or too many; at most a few of them. */
export function describeDifference(found: string[], expected: string[]): string {
  const [has, should] = [new Set(found), new Set(expected)]
  const missing = expected.filter((row) => !has.has(row))
  const extra = found.filter((row) => !should.has(row))
  return `${missing.length} rows are missing (${missing.slice(0, 3)}), ${extra.length} are too many (${extra.slice(0, 3)})`
}
