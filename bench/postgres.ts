import { setTimeout as pause } from 'node:timers/promises'
import type pg from 'pg'
import { startCopy, startPlainPooler, timePlainServer } from './by-hand.ts'
import { until } from './child.ts'
import {
  askBothEndpoints,
  type Cluster,
  type ClusterHost,
  call,
  countReady,
  createCluster,
  fill,
  type Major,
  openClusterHost,
  queryRate,
  removeCluster,
  requestCluster,
  waitForBackup,
  waitUntilReady,
} from './cluster.ts'
import { type Benchmark, group, type Measurement, mean, median, type Ratio, rangeText, repeat } from './framework.ts'
import { clusterMemoryMb } from './memory.ts'
import { type Platform, startBareServer } from './platform.ts'
import { compareRates, openSeeded, type Side } from './rate.ts'
import { inTurn, isDisturbed } from './turn.ts'

interface Fixture extends ClusterHost {
  /** Created by the first benchmark that needs them, and kept. */
  queried?: Promise<Cluster>
  many?: Promise<Many>
}

interface Many {
  ids: string[]
  seconds: number
  readyAt: number
}

const clusterCount = 20
const idleSeconds = 65 // above the minute after which the pooler closes idle connections
const querySeconds = 3
const queryRounds = 5

const clusters = group<Fixture>({
  setUp: openClusterHost,
  benchmarks: [
    creation('16'),
    creation('17'),
    {
      name: 'postgres-get',
      title: 'GET /v1/postgres/{id}, requests/s',
      target: { atLeast: 0.6 },
      async run(fixture) {
        const { scope, platform, state } = fixture
        const { id } = await queriedCluster(fixture)
        const appId = await makeApp(platform, state)
        const bare = await startBareServer(scope, platform)
        const ours: Side = [platform, { method: 'GET', token: platform.token, paths: [`/v1/postgres/${id}`] }]
        const theirs: Side = [bare, { method: 'GET', token: platform.token, paths: [`/app/${appId}`] }]
        const { median, detail, disturbed } = await compareRates(ours, theirs)
        const reference = 'bare Fastify route, one primary-key SELECT'
        return { value: median, unit: '×', reference, note: detail, disturbed }
      },
    },
    {
      name: 'postgres-pooler',
      title: 'pgbench -S through the pooler, 8 clients, queries/s',
      target: { atLeast: 0.9 },
      async run(fixture) {
        const cluster = await queriedCluster(fixture)
        const port = await startPlainPooler(fixture, cluster)
        const ratio = await compareQueries(cluster, cluster.poolerPort, port)
        return queryRatio(ratio, 'manually configured PgBouncer for the same cluster, through the same socket')
      },
    },
    {
      name: 'postgres-direct',
      title: 'pgbench -S directly on the server, 8 clients, queries/s',
      target: { atLeast: 0.95 },
      async run(fixture) {
        const cluster = await queriedCluster(fixture)
        const port = await startCopy(fixture, cluster)
        const ratio = await compareQueries(cluster, cluster.directPort, port)
        return queryRatio(ratio, 'the same binaries started manually on a copy, with the same settings')
      },
    },
    {
      name: 'postgres-create-20',
      title: `time to create ${clusterCount} clusters at once until all answer`,
      target: { atMost: 8 },
      async run(fixture) {
        await timeCreation(fixture, '17') // the first cluster of a version also creates its template
        const single = await repeat(5, () => timeCreation(fixture, '17'))
        const disturbed = await isDisturbed()
        const { seconds } = await manyClusters(fixture)
        const note = `${seconds.toFixed(2)} s for ${clusterCount}; one cluster ${rangeText(single, 2)} s`
        return { value: seconds / median(single), unit: '×', reference: 'one cluster, median of 5', note, disturbed }
      },
    },
    {
      name: 'postgres-create-20-by-hand',
      title: `time to create ${clusterCount} clusters at once until all answer`,
      target: { atMost: 1 },
      async run(fixture) {
        const { bin } = await queriedCluster(fixture)
        const { ids, seconds } = await manyClusters(fixture)
        await Promise.all(ids.map((id) => waitForBackup(fixture, id)))
        const byHand = () => timePlainServer(fixture.scope, fixture.home, bin)
        const reference = Math.max(...(await Promise.all(Array.from({ length: clusterCount }, byHand))))
        const note = `${seconds.toFixed(2)} and ${reference.toFixed(2)} s`
        const against = `initdb and start of ${clusterCount} servers at once, with the same binaries`
        return { value: seconds / reference, unit: '×', reference: against, note, disturbed: await isDisturbed() }
      },
    },
    {
      name: 'postgres-memory',
      title: `idle memory of a cluster with all its processes, ${clusterCount} running`,
      target: { atMost: 25 },
      async run(fixture) {
        const { ids, readyAt } = await manyClusters(fixture)
        await pause(Math.max(0, readyAt + idleSeconds * 1000 - performance.now()))
        const sizes = clusterMemoryMb(ids)
        const note = `PSS ${idleSeconds} s after creation, mean of clusters with ${rangeText(sizes, 1)} MB`
        return { value: mean(sizes), unit: 'MB', reference: '', note, disturbed: false }
      },
    },
  ],
})

const amongMany = group({
  async setUp(scope) {
    return { few: await openSeeded(scope, 100), many: await openSeeded(scope, 10_000) }
  },
  benchmarks: [
    {
      name: 'postgres-get-among-many',
      title: 'time of GET /v1/postgres/{id} with 10,000 clusters',
      target: { atMost: 1.3 },
      async run({ few, many }) {
        const { median, detail, disturbed } = await compareRates(few, many)
        const note = `few and many: ${detail}`
        return { value: median, unit: '×', reference: 'the same with 100 clusters', note, disturbed }
      },
    },
  ],
})

export const postgres = [clusters, amongMany]

function creation(major: Major): Benchmark<Fixture> {
  return {
    name: `postgres-create-${major}`,
    title: `time to create a PostgreSQL ${major} cluster until both endpoints answer a query`,
    target: { atMost: 1 },
    async run(host) {
      // The first cluster of a version also creates its template, once per home.
      const { id, bin } = await createCluster(host, major)
      await removeCluster(host, id)
      const ratio = await inTurn(
        10,
        () => timeCreation(host, major),
        () => timePlainServer(host.scope, host.home, bin),
      )
      const note = `${ratio.measured.toFixed(2)} and ${ratio.reference.toFixed(2)} s; ${ratio.note}`
      const reference = 'initdb and server start with the same binaries'
      return { value: ratio.median, unit: '×', reference, note, disturbed: ratio.disturbed }
    },
  }
}

/** Returns seconds. Removes the cluster before its first backup takes much time. */
async function timeCreation(host: ClusterHost, major: Major): Promise<number> {
  const started = performance.now()
  const id = await requestCluster(host, major)
  await waitUntilReady(host, id)
  await askBothEndpoints(host, id)
  const seconds = (performance.now() - started) / 1000
  await removeCluster(host, id)
  return seconds
}

function queriedCluster(fixture: Fixture): Promise<Cluster> {
  fixture.queried ??= makeQueriedCluster(fixture)
  return fixture.queried
}

async function makeQueriedCluster(host: ClusterHost): Promise<Cluster> {
  const cluster = await createCluster(host, '17')
  await fill(cluster, 5)
  await waitForBackup(host, cluster.id)
  return cluster
}

function manyClusters(fixture: Fixture): Promise<Many> {
  fixture.many ??= makeManyClusters(fixture)
  return fixture.many
}

async function makeManyClusters(host: ClusterHost): Promise<Many> {
  const started = performance.now()
  const ids = await Promise.all(Array.from({ length: clusterCount }, () => requestCluster(host, '17')))
  const allReady = async () => (await countReady(host, ids)) === ids.length
  await until(allReady, `${clusterCount} clusters to be ready`, 120, 50)
  await Promise.all(ids.map((id) => askBothEndpoints(host, id)))
  const readyAt = performance.now()
  return { ids, seconds: (readyAt - started) / 1000, readyAt }
}

async function makeApp(platform: Platform, state: pg.Client): Promise<string> {
  await call(platform, 'POST', '/v1/apps', { app_name: 'bench', org_slug: 'personal' })
  const { rows } = await state.query(`select id from app where name = 'bench'`)
  return rows[0].id
}

async function compareQueries(cluster: Cluster, ours: number, theirs: number): Promise<Ratio> {
  for (const port of [ours, theirs]) await queryRate(cluster, port, querySeconds)
  return inTurn(
    queryRounds,
    () => queryRate(cluster, ours, querySeconds),
    () => queryRate(cluster, theirs, querySeconds),
  )
}

function queryRatio({ median, measured, reference, note, disturbed }: Ratio, against: string): Measurement {
  const rates = `${measured.toFixed(0)} and ${reference.toFixed(0)} queries/s without TLS`
  return { value: median, unit: '×', reference: against, note: `${rates}; ${note}`, disturbed }
}
