import { closeSync, existsSync, globSync, openSync, writeSync } from 'node:fs'
import { mkdir, readdir, symlink } from 'node:fs/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { drillDriver } from '../../../src/drivers/postgres/drill/drill.ts'
import type { DrillDriver } from '../../../src/drivers/postgres/drill/driver.ts'
import { ensureTools } from '../../../src/drivers/postgres/toolchain/tools.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import type { PostgresMajor } from '../../../src/model/postgres/cluster.ts'
import { type ClusterBench, openBench, type TestCluster, untilReady } from '../../support/cluster.ts'
import { until } from '../../support/until.ts'

describe.each(['16', '17'] as const)('the checks of a drill of PostgreSQL %s', (major: PostgresMajor) => {
  let bench: ClusterBench
  let drills: DrillDriver
  let cluster: TestCluster

  beforeAll(async () => {
    bench = await openBench()
    drills = drillDriver({ home: bench.home, jobs: jobDriver(bench.supervisor) })
    cluster = await bench.startCluster(major)
    await bench.postgres.query(
      cluster.id,
      'fly-db',
      `create table public.number as select n, repeat('x', 100) as word from generate_series(1, 1000) n;
       create index on public.number (n)`,
    )
  }, 120_000)

  afterAll(() => bench.remove())

  const spec = (query: string | null = null, tools?: string) => {
    const { toolchain } = cluster.spec
    return { ...cluster.spec, toolchain: { ...toolchain, ...(tools ? { tools, bin: tools } : {}) }, query }
  }

  async function checkPages() {
    await bench.postgres.stop(cluster.id)
    await drills.startPages(cluster.id, spec())
    await until(async () => (await drills.inspectPages(cluster.id)).is !== 'running', 60)
    return drills.inspectPages(cluster.id)
  }

  async function checkContents(query: string | null = null, tools?: string) {
    await bench.postgres.ensureRunning(cluster.id, { ...cluster.spec, closed: true })
    await drills.startContents(cluster.id, spec(query, tools))
    await until(async () => (await drills.inspectContents(cluster.id, spec(query))).is !== 'running', 60)
    const seen = await drills.inspectContents(cluster.id, spec(query))
    await drills.remove(cluster.id)
    return seen
  }

  /** All client programs except one. */
  async function toolsWithout(missing: string): Promise<string> {
    const tools = await ensureTools(cluster.spec.toolchain)
    const place = `${bench.home.toolchain}/without`
    await mkdir(place, { mode: 0o755 })
    const names = (await readdir(tools)).filter((name) => name !== missing)
    for (const name of names) await symlink(`${tools}/${name}`, `${place}/${name}`)
    return place
  }

  test('pass on an intact cluster, with the answer that the default user gets', { timeout: 120_000 }, async () => {
    expect(await drills.inspectPages(cluster.id)).toEqual({ is: 'absent' })
    expect(await checkPages()).toEqual({ is: 'passed' })
    const query = 'select count(*), session_user from number'
    expect(await checkContents(query)).toEqual({ is: 'passed', answer: '1000|fly-user' })
    expect(await checkContents()).toEqual({ is: 'passed', answer: null })
    expect(bench.supervisor.listServices().filter((name) => name.startsWith('drill-'))).toEqual([])
  })

  test('pass with hostile settings of a tenant', { timeout: 120_000 }, async () => {
    const settings = { statement_timeout: 1, idle_session_timeout: 1, local_preload_libraries: 'nowhere' }
    const set = Object.entries({ ...settings, ...(major === '17' && { transaction_timeout: 1 }) })
    const change = (how: (name: string, value: unknown) => string) =>
      bench.postgres.query(
        cluster.id,
        'postgres',
        set.map(([name, value]) => `alter database "fly-db" ${how(name, value)}`).join(';'),
      )
    await bench.postgres.ensureRunning(cluster.id, { ...cluster.spec, closed: true })
    await untilReady(bench.postgres, cluster.id)
    await change((name, value) => `set ${name} = '${value}'`)
    expect(await checkContents()).toEqual({ is: 'passed', answer: null })
    await change((name) => `reset ${name}`)
  })

  test('accept only SQL as the query of the owner', { timeout: 120_000 }, async () => {
    const mark = `${bench.home.path}/clusters/${cluster.id}/drill/escaped`
    for (const query of [`\\! touch ${mark}`, '\\c - postgres', `select 1 \\g | touch ${mark}`]) {
      expect(await checkContents(query)).toMatchObject({
        is: 'failed',
        reason: expect.stringContaining('syntax error'),
      })
    }
    expect(existsSync(mark)).toBe(false)
    expect(await checkContents(`select 'a\nb', 'c'; select 2`)).toEqual({ is: 'passed', answer: 'a\nb|c\n2' })
    expect(await checkContents('select * from nothing')).toEqual({
      is: 'failed',
      reason: expect.stringMatching(/^the drill query failed: ERROR: {2}relation "nothing" does not exist/),
    })
  })

  test('find a corrupt index, even without pg_amcheck', { timeout: 120_000 }, async () => {
    const compare = (sign: string) =>
      `create or replace function public.compare(int, int) returns int language sql immutable
       as 'select ${sign}pg_catalog.btint4cmp($1, $2)'`
    await bench.postgres.ensureRunning(cluster.id, { ...cluster.spec, closed: true })
    await untilReady(bench.postgres, cluster.id)
    const without = await toolsWithout('pg_amcheck')
    expect(await checkContents(null, without)).toEqual({ is: 'passed', answer: null })
    await bench.postgres.query(
      cluster.id,
      'fly-db',
      `${compare('')};
       create operator class public.turned for type int using btree as operator 1 pg_catalog.<,
         operator 2 pg_catalog.<=, operator 3 pg_catalog.=, operator 4 pg_catalog.>=, operator 5 pg_catalog.>,
         function 1 public.compare(int, int);
       create index turned_index on public.number (n public.turned);
       ${compare('-')}`,
    )
    const found = {
      is: 'failed',
      reason: expect.stringMatching(/^the check of tables and indexes failed: .*turned_index/),
    }
    expect(await checkContents()).toMatchObject(found)
    expect(await checkContents(null, without)).toMatchObject(found)
    await bench.postgres.query(cluster.id, 'fly-db', 'drop index public.turned_index')
  })

  test('find a flipped byte', { timeout: 120_000 }, async () => {
    const [row] = await bench.postgres.query<{ path: string }>(
      cluster.id,
      'fly-db',
      `select pg_relation_filepath('public.number') as path`,
    )
    await bench.postgres.stop(cluster.id)
    const [file] = globSync(`${bench.home.path}/clusters/${cluster.id}/data/${row!.path}`)
    const descriptor = openSync(file!, 'r+')
    writeSync(descriptor, 'y', 8192 * 2 + 8000)
    closeSync(descriptor)
    const pages = await checkPages()
    const seen = pages.is === 'passed' ? await checkContents() : pages
    expect(seen).toMatchObject({ is: 'failed', reason: expect.stringContaining('the check of every page failed: ') })
    expect(seen).toMatchObject({ reason: expect.stringContaining(row!.path) })
  })
})
