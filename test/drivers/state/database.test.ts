import { type ChildProcess, spawn } from 'node:child_process'
import { readdirSync, statSync, writeFileSync } from 'node:fs'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { edgeUid, type Home, openHome } from '../../../src/drivers/host/home.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { ensureToolchain } from '../../../src/drivers/postgres/toolchain/toolchain.ts'
import type { Supervisor } from '../../../src/drivers/s6/driver.ts'
import { s6Supervisor } from '../../../src/drivers/s6/supervisor.ts'
import { ensureStateDatabase, type StateDatabase } from '../../../src/drivers/state/database.ts'
import { waitUntil } from '../../../src/model/poll.ts'
import type { Toolchain } from '../../../src/model/postgres/toolchain.ts'
import {
  canRunAs,
  firstLine,
  processesBelow,
  removeTemporaryHome,
  startProgram,
  temporaryDirectory,
} from '../../support/temporary-home.ts'
import { logIn, nobody } from './log-in.ts'

const directory = temporaryDirectory()
const others: string[] = []
const unrelatedProcesses: ChildProcess[] = []
const registry = temporaryDirectory()
let home: Home
let supervisor: Supervisor
let toolchain: Toolchain
let database: StateDatabase

beforeAll(async () => {
  home = await openHome(directory, { uidBase: 300_000, registry })
  supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
  toolchain = await ensureToolchain('17', home)
  await supervisor.ensureTree()
  database = await ensureStateDatabase({ home, supervisor, toolchain })
})

afterAll(async () => {
  for (const unrelated of unrelatedProcesses) unrelated.kill('SIGKILL')
  for (const path of [directory, registry, ...others]) await removeTemporaryHome(path)
})

async function query(sql: string, config = database): Promise<Record<string, unknown>[]> {
  const client = new pg.Client(config)
  await client.connect()
  return client
    .query(sql)
    .then((result) => result.rows)
    .finally(() => client.end())
}

async function postmaster(): Promise<number> {
  const state = await supervisor.inspectService('state-database')
  return state.is === 'up' ? state.pid : 0
}

test('has its own database, checksums and durable commits, and listens on a socket only', async () => {
  expect(await query('select current_database() as name')).toEqual([{ name: 'berth' }])
  const settings = ['data_checksums', 'fsync', 'synchronous_commit', 'listen_addresses', 'jit', 'TimeZone']
  const rows = await query(
    `select setting from unnest('{${settings}}'::text[]) as name, current_setting(name) as setting`,
  )
  expect(rows.map((row) => row.setting)).toEqual(['on', 'on', 'on', '', 'off', 'UTC'])
})

test('can be reached by root, its own user and the edge only', async () => {
  const socketDirectory = statSync(database.host)
  expect(socketDirectory.mode & 0o777).toBe(isRoot() ? 0o710 : 0o700)
  if (!isRoot()) return
  expect(socketDirectory.gid).toBe(edgeUid(home))
  expect(socketDirectory.uid).toBe(home.uidStart)
  expect(statSync(`/proc/${await postmaster()}`).uid).toBe(home.uidStart)
})

test('does not restart a running database', async () => {
  const pid = await postmaster()
  await ensureStateDatabase({ home, supervisor, toolchain })
  expect(await postmaster()).toBe(pid)
})

test('restarts with all committed data after its server is killed', async () => {
  await query('create table kept (id int); insert into kept values (1)')
  const pid = await postmaster()
  process.kill(pid, 'SIGKILL')
  expect(await waitUntil(async () => (await postmaster()) !== pid, 45)).toBe(true)
  await ensureStateDatabase({ home, supervisor, toolchain })
  expect(await postmaster()).not.toBe(pid)
  expect(await query('select id from kept')).toEqual([{ id: 1 }])
})

test('starts on an existing home with all committed data, without creating it again', async () => {
  const control = statSync(`${home.state}/data/PG_VERSION`).ino
  await supervisor.stopTree()
  await supervisor.ensureTree()
  await ensureStateDatabase({ home, supervisor, toolchain })
  expect(statSync(`${home.state}/data/PG_VERSION`).ino).toBe(control)
  expect(await query('select id from kept')).toEqual([{ id: 1 }])
})

test('starts after a reboot although its lock file names another process of the same user', async () => {
  await supervisor.stopTree()
  const unrelated = spawn('sleep', ['1000'], isRoot() ? { uid: home.uidStart, gid: home.uidStart } : {})
  unrelatedProcesses.push(unrelated)
  const lock = [unrelated.pid, `${home.state}/data`, 1, 5432, database.host, '', ' 1234567 0', 'ready   ', ''].join(
    '\n',
  )
  writeFileSync(`${home.state}/data/postmaster.pid`, lock)
  writeFileSync(`${database.host}/.s.PGSQL.5432.lock`, lock)
  await supervisor.ensureTree()
  await ensureStateDatabase({ home, supervisor, toolchain })
  expect(await postmaster()).not.toBe(unrelated.pid)
  expect(await query('select id from kept')).toEqual([{ id: 1 }])
})

test('starts when a crash left its lock file empty', async () => {
  await supervisor.stopTree()
  writeFileSync(`${home.state}/data/postmaster.pid`, '')
  await supervisor.ensureTree()
  await ensureStateDatabase({ home, supervisor, toolchain })
  expect(await query('select id from kept')).toEqual([{ id: 1 }])
})

function starter(path: string, owner?: number) {
  const program = `
    import { openHome } from 'drivers/host/home.ts'
    import { ensureStateDatabase } from 'drivers/state/database.ts'
    import { s6Supervisor } from 'drivers/s6/supervisor.ts'
    import { ensureToolchain } from 'drivers/postgres/toolchain/toolchain.ts'
    const home = await openHome('${path}', { uidBase: 300000, registry: '${registry}' })
    const supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
    await supervisor.ensureTree()
    const toolchain = await ensureToolchain('17', home)
    console.log(JSON.stringify(await ensureStateDatabase({ home, supervisor, toolchain })))
  `
  return firstLine(startProgram(program, owner))
}

test('is created once by concurrent processes', async () => {
  const path = temporaryDirectory()
  others.push(path)
  const [first, second, third] = await Promise.all([starter(path), starter(path), starter(path)])
  expect([second, third]).toEqual([first, first])
  expect(readdirSync(`${path}/state`).sort()).toEqual(['access', 'data'])
  expect(await query('select 1 as one', JSON.parse(first ?? ''))).toEqual([{ one: 1 }])
})

test.runIf(canRunAs(nobody))('works for an ordinary user', async () => {
  const path = temporaryDirectory(nobody)
  others.push(path)
  const config = JSON.parse(await starter(path, nobody))
  expect(await logIn(nobody, config)).toBe('berth')
  expect(await logIn(nobody, { ...config, user: 'berth_edge' })).toBe('role "berth_edge" does not exist')
  // Root does not run this platform, so it is a stranger to its database.
  expect(await logIn(0, config)).toBe('Peer authentication failed for user "berth"')
  // The process that started it may be about to end.
  const owners = processesBelow(path).flatMap(
    ({ pid }) => statSync(`/proc/${pid}`, { throwIfNoEntry: false })?.uid ?? [],
  )
  expect(new Set(owners)).toEqual(new Set([nobody]))
})
