// Clusters on the PostgreSQL of the distribution, which a copy of the bundled one with more extensions stands for.
import { type ChildProcess, execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { accessOf, ask, createCluster, destroy, untilReady } from '../../support/client.ts'
import { removeDirectory } from '../../support/directory.ts'
import { makeInstallation } from '../../support/fake/installation.ts'
import { until } from '../../support/until.ts'

const directory = mkdtempSync(`${tmpdir()}/berth-distribution-`)
const berth = new Berth({ BERTH_DRILL_INTERVAL: 'off', BERTH_POSTGRES_DIRECTORY: directory })
let controlPlane: ChildProcess
let plain: string
let search: string

beforeAll(async () => {
  execFileSync('chmod', ['755', directory])
  makeInstallation(`${directory}/17`, '17')
  controlPlane = await berth.up()
  plain = await create({ name: 'plain', extensions: ['citext'] })
  search = await create({ name: 'search', extensions: ['vector'] })
}, 240_000)

afterAll(async () => {
  await destroy(berth)
  await removeDirectory(directory)
})

async function create(extra: object): Promise<string> {
  const id = await createCluster(berth, { pg_major_version: '17', ...extra })
  await untilReady(berth, id)
  return id
}

/** The path of the server program, which the server writes into its data directory. */
function programOf(id: string): string {
  return readFileSync(`${berth.home}/clusters/${id}/data/postmaster.opts`, 'utf8').split(' ')[0]!
}

const bundled = expect.stringContaining(`${berth.home}/toolchain/postgres-17`)
const distribution = `${directory}/17/bin/postgres`

test('a new cluster uses the distribution only for an extension that the bundled PostgreSQL lacks', async () => {
  expect(programOf(plain)).toEqual(bundled)
  expect(programOf(search)).toBe(distribution)
  const [row] = await ask(await accessOf(berth, search), 'pooler', `select '{1,2}'::vector as point`)
  expect(row).toEqual({ point: [1, 2] })
  expect(await ask(await accessOf(berth, plain), 'pooler', `select 'A'::citext = 'a' as same`)).toEqual([
    { same: true },
  ])
})

test('an extension that the installation of a cluster lacks is refused with the remedy', async () => {
  const { status, body } = await berth.call('POST', `/v1/postgres/${plain}/databases/fly-db/extensions`, {
    name: 'vector',
  })
  expect(status).toBe(422)
  expect(body.error).toContain('not part of the PostgreSQL installation of this cluster; create a cluster with it')
})

test('a fork stays with the installation of its source', { timeout: 240_000 }, async () => {
  const access = await accessOf(berth, search)
  await ask(access, 'direct', `create table item as select '{3,4}'::vector as point`)
  let copy = ''
  // It is refused until the first backup is complete.
  await until(async () => {
    const { status, body } = await berth.call('POST', `/v1/postgres/${search}/fork`, { name: 'search-again' })
    copy = body.data?.id
    return status === 201
  }, 120)
  await untilReady(berth, copy)
  expect(programOf(copy)).toBe(distribution)
  const [row] = await ask(await accessOf(berth, copy), 'direct', 'select point from item')
  expect(row).toEqual({ point: [3, 4] })
})

test('the operator can prefer the distribution, and older clusters stay', { timeout: 240_000 }, async () => {
  await end(controlPlane, 'SIGTERM')
  berth.environment.BERTH_POSTGRES = 'distribution'
  controlPlane = await berth.up()
  expect(programOf(await create({ name: 'another' }))).toBe(distribution)
  await untilReady(berth, plain)
  expect(programOf(plain)).toEqual(bundled)
  await expect(berth.cli('postgres', 'upgrade', 'plain')).rejects.toMatchObject({
    stderr: expect.stringContaining('is the newest installed version'),
  })
})
