import type { ChildProcess } from 'node:child_process'
import { chmodSync, globSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import {
  accessOf,
  ask,
  attempt,
  connect,
  createCluster,
  destroy,
  lookClosely,
  untilReady,
} from '../../support/client.ts'
import { until } from '../../support/until.ts'

const berth = new Berth({ BERTH_DRILL_INTERVAL: 'off' })
let controlPlane: ChildProcess
/** A cluster of PostgreSQL 17.5, which the client programs come from, and one of 16. */
let minor: string
let major: string

const show = async (id: string) => (await berth.call('GET', `/v1/postgres/${id}`)).body.data

/** Replaces the control plane by one that uses another installation of PostgreSQL 17. */
async function restart(bin?: string): Promise<void> {
  if (controlPlane) await end(controlPlane)
  delete berth.environment.BERTH_PG17_BIN
  if (bin !== undefined) berth.environment.BERTH_PG17_BIN = bin
  controlPlane = await berth.up()
}

const findOne = (pattern: string) => globSync(`${berth.home}/toolchain/${pattern}`)[0]!

/** An installation that claims to be newer and whose server works for the platform itself, but not for clusters. */
function makeBroken(): string {
  const real = findOne('postgres-17*')
  const broken = `${berth.home}/toolchain/broken`
  mkdirSync(`${broken}/bin`, { recursive: true })
  for (const part of ['lib', 'share']) symlinkSync(`${real}/${part}`, `${broken}/${part}`)
  for (const program of ['initdb', 'pg_ctl']) symlinkSync(`${real}/bin/${program}`, `${broken}/bin/${program}`)
  const script = `#!/bin/sh
    case "$*" in
      --version) echo 'postgres (PostgreSQL) 17.99' ;;
      */clusters/*) echo 'FATAL:  this server is broken'; exit 1 ;;
      *) exec ${real}/bin/postgres "$@" ;;
    esac`
  writeFileSync(`${broken}/bin/postgres`, script)
  for (const path of [broken, `${broken}/bin`, `${broken}/bin/postgres`]) chmodSync(path, 0o755)
  return `${broken}/bin`
}

beforeAll(async () => {
  await restart(findOne('tools-*/bin'))
  minor = await createCluster(berth, { name: 'shop', pg_major_version: '17', pool_mode: 'transaction' })
  major = await createCluster(berth, { name: 'store', pg_major_version: '16' })
  for (const id of [minor, major]) {
    await untilReady(berth, id)
    const access = await accessOf(berth, id)
    await ask(access, 'direct', 'create table number as select generate_series(1, 1000) as n')
  }
}, 240_000)

afterAll(() => destroy(berth))

describe('a minor upgrade', () => {
  test('goes back if the new server does not start', { timeout: 240_000 }, async () => {
    expect(await show(minor)).toMatchObject({ pg_version: '17.5' })
    await restart(makeBroken())
    await expect(berth.cli('postgres', 'upgrade', 'shop')).rejects.toMatchObject({
      stderr: expect.stringMatching(/17\.99 does not start, so the cluster runs 17\.5 again: .*this server is broken/),
    })
    await until(async () => (await attempt(await accessOf(berth, minor), 'pooler')) === true, 30)
    expect(await show(minor)).toMatchObject({ status: 'ready', pg_version: '17.5', upgrade: { phase: 'failed' } })
  })

  test('restarts the server, also if the control plane is killed meanwhile', { timeout: 240_000 }, async () => {
    await restart()
    const access = await accessOf(berth, minor)
    await lookClosely(berth, minor)
    const outdated = await show(minor)
    expect(outdated.health).toMatchObject({
      status: 'ok',
      reason: `PostgreSQL 17.5 is running and ${outdated.pg_newest_version} is installed: run berth postgres upgrade ${minor}`,
    })
    const { stdout: report } = await berth.cli('doctor').catch((error) => error)
    expect(report).toMatch(/1 of 2 clusters run an older minor version: shop \(17\.5, not 17\.\d+\)/)

    const later = new Date(Date.now() + 3_600_000).toISOString()
    expect((await berth.cli('postgres', 'upgrade', 'shop', '--at', later)).stdout).toContain('planned for')
    expect((await berth.cli('postgres', 'upgrade', 'shop', '--cancel')).stdout).toContain('cancelled')

    // A client of the pooler keeps its connection, because it has none to the server between its transactions.
    const client: pg.Client = await connect(access, 'pooler')
    try {
      await client.query('select 1')
      await berth.cli('postgres', 'upgrade', 'shop', '--no-wait')
      await until(async () => (await show(minor)).upgrade.phase !== 'planned', 30)
      await restart()
      await until(async () => (await show(minor)).upgrade.phase === 'done', 60)
      await until(async () => (await attempt(access, 'pooler')) === true, 30)
      const [row] = (await client.query('select count(*)::int as count from number')).rows
      expect(row).toEqual({ count: 1000 })
    } finally {
      await client.end()
    }
    const upgraded = await show(minor)
    expect(upgraded).toMatchObject({ status: 'ready', pg_version: outdated.pg_newest_version })
    const [version] = await ask(access, 'direct', 'show server_version')
    expect(version).toEqual({ server_version: upgraded.pg_version })
    await expect(berth.cli('postgres', 'upgrade', 'shop')).rejects.toMatchObject({
      stderr: expect.stringContaining('is the newest installed version'),
    })
  })
})

describe('a major upgrade', () => {
  test('makes a cluster of the new version from a copy', { timeout: 240_000 }, async () => {
    const source = await accessOf(berth, major)
    await until(async () => (await show(major)).recovery_window !== null, 60)
    await ask(source, 'direct', 'insert into number values (1001)')
    const started = await berth.cli('postgres', 'upgrade', 'store', '--pg', '17', '--no-wait', '--json')
    const { id } = JSON.parse(started.stdout).data
    await until(async () => !['restoring', 'checking'].includes((await show(id)).upgrade.phase), 120)
    await restart()
    await ask(source, 'direct', 'insert into number values (1002)')
    await untilReady(berth, id)

    const access = await accessOf(berth, id)
    expect(await show(id)).toMatchObject({
      name: 'store-pg17',
      pg_major_version: '17',
      upgrade: { kind: 'major', phase: 'done', error: null },
    })
    expect(access.password).not.toBe(source.password)
    for (const way of ['direct', 'pooler'] as const) {
      expect(await ask(access, way, 'select max(n) as newest from number')).toEqual([{ newest: 1001 }])
    }
    expect(await show(major)).toMatchObject({ status: 'ready', pg_major_version: '16', health: { status: 'ok' } })
    expect(await ask(source, 'direct', 'select max(n) as newest from number')).toEqual([{ newest: 1002 }])

    // A new database gives readers and writers their rights.
    await berth.ok('POST', `/v1/postgres/${id}/databases`, { name: 'fresh' })
    await berth.ok('POST', `/v1/postgres/${id}/users`, { username: 'rita', role: 'reader' })
    await berth.ok('POST', `/v1/postgres/${id}/users`, { username: 'will', role: 'writer' })
    const fresh = { database: 'fresh' }
    await ask(access, 'pooler', 'create table thing (n int); insert into thing values (1)', fresh)
    const [reader, writer] = await Promise.all(['rita', 'will'].map((user) => accessOf(berth, id, user)))
    expect(await ask(reader!, 'pooler', 'select n from thing', fresh)).toEqual([{ n: 1 }])
    expect(await attempt(reader!, 'pooler', 'insert into thing values (2)', fresh)).toMatch(/permission denied/)
    expect(await attempt(writer!, 'pooler', 'insert into thing values (2)', fresh)).toBe(true)
    expect(await attempt(writer!, 'direct', 'insert into number values (2)')).toBe(true)

    // Its own archive and its first backup open a window.
    await until(async () => (await show(id)).recovery_window !== null, 120)
  })
})
