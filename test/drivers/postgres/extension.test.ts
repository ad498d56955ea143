import { afterAll, beforeAll, expect, test } from 'vitest'
import { ensureToolchain } from '../../../src/drivers/postgres/toolchain/toolchain.ts'
import { hasExtension } from '../../../src/drivers/postgres/toolchain/tools.ts'
import { ask, type ClusterBench, openBench, password, type TestCluster, untilReady } from '../../support/cluster.ts'
import { makeInstallation } from '../../support/fake/installation.ts'

let bench: ClusterBench
let cluster: TestCluster

beforeAll(async () => {
  bench = await openBench()
  const configuredBin = makeInstallation(`${bench.home.path}/installed`, '17')
  const made = await bench.newCluster('17')
  cluster = {
    ...made,
    spec: { ...made.spec, toolchain: await ensureToolchain('17', bench.home, { configuredBin }) },
  }
  await bench.postgres.ensureData(cluster.id, cluster.spec)
  await bench.postgres.ensureRunning(cluster.id, cluster.spec)
  await untilReady(bench.postgres, cluster.id)
}, 120_000)

afterAll(() => bench?.remove())

test('an installation tells which extensions it has', async () => {
  const { toolchain } = cluster.spec
  expect(['postgis', 'vector', 'citext', 'nonsense'].map((name) => hasExtension(toolchain, name))).toEqual([
    true,
    true,
    true,
    false,
  ])
})

test('PostGIS is enabled in `public` of a new database, once', async () => {
  for (let times = 0; times < 2; times++) await bench.postgres.extensions.enableInNew(cluster.id, 'fly-db', 'postgis')
  await bench.postgres.users.setPassword(cluster.id, 'fly-user', password)
  await bench.addUser(cluster, 'reading', 'reader')
  const asReader = { user: 'reading' }
  expect(
    await ask(cluster.spec.port, `select postgis_version() as version, '(1,2)'::geometry is null as none`, asReader),
  ).toEqual([{ version: '3.5 stand-in', none: false }])
  expect(await ask(cluster.spec.port, 'select srid from spatial_ref_sys', asReader)).toEqual([])
})

test('an extension of the distribution is enabled in another database, with those that it requires', async () => {
  await bench.postgres.databases.create(cluster.id, 'other')
  await bench.postgres.extensions.enable(cluster.id, 'other', 'vector')
  await bench.postgres.extensions.enable(cluster.id, 'other', 'postgis_topology')
  const listed = await bench.postgres.extensions.list(cluster.id, 'other')
  const schemas = Object.fromEntries(listed.map(({ name, installed }) => [name, installed?.schema]))
  expect(schemas).toMatchObject({ vector: 'public', postgis: 'postgis', postgis_topology: 'topology' })
  expect(await ask(cluster.spec.port, `select '{1,2}'::vector as v`, { database: 'other' })).toEqual([{ v: [1, 2] }])
})

test('the server sees where Debian links the control files of PostGIS to', async () => {
  const [row] = await bench.postgres.query(
    cluster.id,
    'postgres',
    `select count(*)::int as entries from pg_ls_dir('/etc/alternatives')`,
  )
  expect(row!.entries).toBeGreaterThan(0)
})
