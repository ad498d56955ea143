import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { gunzipSync } from 'node:zlib'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { type Home, openHome, readOrCreateKey } from '../../../src/drivers/host/home.ts'
import { ensureToolchain } from '../../../src/drivers/postgres/toolchain/toolchain.ts'
import { directoryRepository } from '../../../src/drivers/repository/directory.ts'
import type { JobDriver, Supervisor } from '../../../src/drivers/s6/driver.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import { s6Supervisor } from '../../../src/drivers/s6/supervisor.ts'
import { ensureStateDatabase, type StateDatabase } from '../../../src/drivers/state/database.ts'
import type { StateDumpDriver } from '../../../src/drivers/state/driver.ts'
import { stateDumpDriver } from '../../../src/drivers/state/dump.ts'
import { type StateBackup, type StateBackupOptions, startStateBackup } from '../../../src/reconcile/state-backup.ts'
import { openDatabase } from '../../../src/store/db.ts'
import { migrate } from '../../../src/store/migrate.ts'
import { removeTemporaryHome, temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const directory = temporaryDirectory()
let home: Home
let supervisor: Supervisor
let jobs: JobDriver
let database: StateDatabase
let repository: string
let dumps: StateDumpDriver
let backup: StateBackup | undefined
const errors: unknown[] = []
let count = 0

beforeAll(async () => {
  home = await openHome(`${directory}/h`, { uidBase: 300_000, registry: `${directory}/registry` })
  readOrCreateKey(home)
  supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
  await supervisor.ensureTree()
  jobs = jobDriver(supervisor)
  database = await ensureStateDatabase({ home, supervisor, toolchain: await ensureToolchain('17', home) })
  const db = openDatabase({ ...database })
  await migrate(db)
  await db.query(`insert into org (id, slug, name) values ('abcdefghij123456', 'acme', 'Acme')`)
  await db.close()
})

beforeEach(() => {
  count += 1
  errors.length = 0
  repository = `${directory}/repository-${count}`
  dumps = driver(database)
})

afterEach(async () => {
  await backup?.stop()
  await dumps.discardDump()
})

afterAll(async () => {
  await removeTemporaryHome(home.path)
  await removeTemporaryHome(directory)
})

function driver(from: StateDatabase): StateDumpDriver {
  const findToolchain = () => ensureToolchain('17', home)
  return stateDumpDriver({ home, jobs, repository: directoryRepository(repository), database: from, findToolchain })
}

function start(schedule: StateBackupOptions['schedule'] = {}): StateBackup {
  const quick = { checkMs: 20, delayMs: 50, minIntervalMs: 200, ...schedule }
  backup = startStateBackup({ dumps, onError: (error) => errors.push(error), schedule: quick })
  return backup
}

const place = () => `${repository}/.platform`
const kept = (): string[] => {
  try {
    return readdirSync(place()).sort()
  } catch {
    return []
  }
}
const isDump = (name: string) => /^state-\d{8}-\d{6}F-[0-9a-f]{8}\.sql\.gz$/.test(name)

test('stores a dump and the key, readable only by their owner, soon after a resource is created', async () => {
  start().note({ kind: 'cluster', result: 'ready' })
  await until(() => kept().some(isDump))
  await until(() => !supervisor.listServices().includes('state-dump'))
  await backup!.stop()
  const [key, dump] = kept()
  expect(kept()).toHaveLength(2)
  expect(readFileSync(`${place()}/${key}`)).toEqual(readFileSync(home.keyFile))
  for (const name of kept()) expect(statSync(`${place()}/${name}`).mode & 0o777, name).toBe(0o600)
  expect(statSync(place()).mode & 0o777).toBe(0o700)
  const text = gunzipSync(readFileSync(`${place()}/${dump}`)).toString()
  expect(text).toContain('CREATE TABLE public.cluster')
  expect(text).toMatch(/abcdefghij123456\t\d+\tacme\tAcme/)
  expect(text).toContain('PostgreSQL database dump complete')
  expect(readdirSync(home.cache).filter((name) => name.startsWith('state.sql'))).toEqual([])
  expect(errors).toEqual([])
})

test('ignores steps that create nothing', async () => {
  const running = start()
  for (const turn of [
    { kind: 'cluster', result: 'wait' },
    { kind: 'backup', result: 'started' },
    { kind: 'app', result: 'ready' },
  ])
    running.note(turn)
  await new Promise((resolve) => setTimeout(resolve, 500))
  expect(kept()).toEqual([])
})

test('makes one dump for many events, and the next after the minimum interval', async () => {
  const begun: number[] = []
  const made = dumps
  dumps = {
    ...made,
    startDump: () => {
      begun.push(Date.now())
      return made.startDump()
    },
  }
  const running = start({ minIntervalMs: 3_000 })
  for (let i = 0; i < 50; i++) running.note({ kind: 'backup', result: 'completed' })
  await until(() => kept().some(isDump))
  running.note({ kind: 'backup', result: 'completed' })
  await until(() => kept().filter(isDump).length === 2)
  expect(begun).toHaveLength(2)
  // The interval counts from the decision, which precedes the dump by a moment.
  expect(begun[1]! - begun[0]!).toBeGreaterThan(2_900)
})

test('makes another dump when the newest is older than the interval', async () => {
  start({ intervalMs: 1_500 })
  await until(() => kept().filter(isDump).length >= 2)
})

test('keeps the newest seven dumps of this home, and all files of other homes', async () => {
  mkdirSync(place(), { recursive: true })
  start().note({ kind: 'cluster', result: 'ready' })
  await until(() => kept().some(isDump))
  const mark = /-([0-9a-f]{8})\./.exec(kept().find(isDump)!)![1]!
  await backup!.stop()
  await until(() => !supervisor.listServices().includes('state-dump'))
  const others = ['key-00000000', ...[1, 2, 3].map((n) => `state-2020010${n}-000000F-00000000.sql.gz`)]
  const own = [1, 2, 3, 4, 5, 6, 7].map((n) => `state-2021010${n}-000000F-${mark}.sql.gz`)
  for (const name of [...others, ...own]) writeFileSync(`${place()}/${name}`, name)
  await dumps.startDump()
  await until(async () => (await dumps.inspectDump()).is === 'done')
  await dumps.keepDump()
  await dumps.keepDump()
  expect(kept()).toEqual(expect.arrayContaining(others))
  const left = kept().filter((name) => name.startsWith('state-') && name.includes(mark))
  expect(left).toHaveLength(7)
  // Two dumps within the same second have the same name.
  const made = left.filter((name) => !own.includes(name)).length
  expect(left.slice(0, -made)).toEqual(own.slice(made))
})

test('reports a failure, stores nothing, and tries again', async () => {
  dumps = driver({ ...database, host: `${directory}/nowhere` })
  start().note({ kind: 'cluster', result: 'ready' })
  await until(() => errors.length >= 2)
  expect(String(errors[0])).toMatch(/dump the state database: .*nowhere/)
  expect(kept()).toEqual([])
})

test('completes a dump that an earlier process started', async () => {
  await dumps.startDump()
  start({ intervalMs: 3_600_000 })
  await until(() => kept().some(isDump))
  await until(() => !supervisor.listServices().includes('state-dump'))
})
