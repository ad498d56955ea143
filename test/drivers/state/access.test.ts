import { readFileSync, writeFileSync } from 'node:fs'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { edgeUid, type Home, openHome } from '../../../src/drivers/host/home.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { scramVerifier } from '../../../src/drivers/postgres/sql/scram.ts'
import { ensureToolchain } from '../../../src/drivers/postgres/toolchain/toolchain.ts'
import type { Supervisor } from '../../../src/drivers/s6/driver.ts'
import { s6Supervisor } from '../../../src/drivers/s6/supervisor.ts'
import { hbaText, identText } from '../../../src/drivers/state/access.ts'
import { ensureStateDatabase, type StateDatabase } from '../../../src/drivers/state/database.ts'
import { openDatabase } from '../../../src/store/db.ts'
import { ensureEdgeRole } from '../../../src/store/edge-role.ts'
import { migrate } from '../../../src/store/migrate.ts'
import { removeTemporaryHome, temporaryDirectory } from '../../support/temporary-home.ts'
import { logIn, nobody } from './log-in.ts'

const directory = temporaryDirectory()
const registry = temporaryDirectory()
const password = 'only-the-edge-knows'
let home: Home
let supervisor: Supervisor
let database: StateDatabase

beforeAll(async () => {
  home = await openHome(directory, { uidBase: 300_000, registry })
  supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
  await supervisor.ensureTree()
  database = await start()
  const db = openDatabase({ ...database })
  await migrate(db)
  await ensureEdgeRole(db, { name: 'berth_edge', verifier: scramVerifier(password) })
  await db.close()
})

afterAll(async () => {
  for (const path of [directory, registry]) await removeTemporaryHome(path)
})

async function start(): Promise<StateDatabase> {
  return ensureStateDatabase({ home, supervisor, toolchain: await ensureToolchain('17', home) })
}

async function query(sql: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ ...database })
  await client.connect()
  const { rows } = await client.query(sql).finally(() => client.end())
  return rows
}

test('no access file trusts anyone', async () => {
  const rules = await query('select type, auth_method, error from pg_hba_file_rules')
  expect(rules.map((rule) => rule.auth_method)).toEqual(isRoot() ? ['peer', 'scram-sha-256'] : ['peer', 'peer'])
  expect(await query('select error from pg_ident_file_mappings where error is not null')).toEqual([])
  for (const name of ['hba_file', 'ident_file']) {
    const [{ setting }] = (await query(`select current_setting('${name}') as setting`)) as [{ setting: string }]
    expect(setting.startsWith(`${home.state}/access/`)).toBe(true)
  }
  expect(readFileSync(`${home.state}/data/pg_hba.conf`, 'utf8')).toBe('local all all reject\n')
})

test.runIf(isRoot())('each user of the host can log in as its own role only', async () => {
  const edge = { ...database, user: 'berth_edge', password }
  const asEdge = (config: pg.ClientConfig) => logIn(edgeUid(home), config)
  expect(await logIn(0, database)).toBe('berth')
  expect(await asEdge(edge)).toBe('berth_edge')
  expect(await asEdge({ ...edge, password: 'guessed' })).toMatch(/password authentication failed/)
  expect(await asEdge({ ...database, user: 'berth_edge' })).toMatch(/password/)
  expect(await asEdge({ ...database, password })).toMatch(/Peer authentication failed/)
  expect(await asEdge({ ...edge, database: 'postgres' })).toMatch(/no pg_hba.conf entry/)
  expect(await asEdge({ ...edge, user: 'nobody' })).toMatch(/no pg_hba.conf entry/)
  // The user of the server can reach the socket, but has no login. Others cannot reach it, also with the password.
  expect(await logIn(home.uidStart, database)).toMatch(/Peer authentication failed/)
  for (const uid of [nobody, home.uidStart + 1, home.uidStart + 65_536]) {
    for (const config of [database, edge]) expect(await logIn(uid, config), `${uid}`).toMatch(/EACCES/)
  }
})

test('a data directory of an older version gets the same access files', async () => {
  await supervisor.stopTree()
  for (const file of [`${home.state}/data/pg_hba.conf`, `${home.state}/access/pg_hba.conf`]) {
    writeFileSync(file, 'local all all trust\n')
  }
  await supervisor.ensureTree()
  await start()
  const rules = await query('select auth_method from pg_hba_file_rules')
  expect(rules.map((rule) => rule.auth_method)).not.toContain('trust')
  expect(readFileSync(`${home.state}/data/pg_hba.conf`, 'utf8')).not.toContain('trust')
})

test('a running server reads access files that had to be changed', async () => {
  writeFileSync(`${home.state}/access/pg_ident.conf`, 'berth stranger berth\n')
  await start()
  expect(readFileSync(`${home.state}/access/pg_ident.conf`, 'utf8')).not.toContain('stranger')
  expect(await query('select 1 as one')).toEqual([{ one: 1 }])
})

test.runIf(isRoot())(
  'the server runs as its own user, without capabilities and without a way to gain some',
  async () => {
    const state = await supervisor.inspectService('state-database')
    if (state.is !== 'up') throw new Error('the state database is down')
    const status = readFileSync(`/proc/${state.pid}/status`, 'utf8')
    expect(status).toMatch(new RegExp(`^Uid:\\t${home.uidStart}\\t`, 'm'))
    expect(status).toMatch(/^NoNewPrivs:\t1$/m)
    expect(status).toMatch(/^CapEff:\t0+$/m)
  },
)

test('without root, one user has both roles', () => {
  expect(hbaText(false)).toBe('local all berth peer map=berth\nlocal berth berth_edge peer map=berth\n')
  expect(identText('anna', false)).toBe('berth "anna" berth\nberth "anna" berth_edge\n')
})

test('a user name cannot add lines or patterns to the map', () => {
  expect(identText('a "b" c', true)).toBe('berth "a ""b"" c" berth\n')
  for (const name of ['/.*', 'anna\nberth "bert" berth', '']) expect(() => identText(name, true)).toThrow('cannot be')
})
