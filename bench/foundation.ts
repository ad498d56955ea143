import { setTimeout as pause } from 'node:timers/promises'
import type pg from 'pg'
import { group, interleave, type Measurement, median, type Ratio, rangeText, repeat } from './framework.ts'
import { applyLoad, type Load, loadGenerator } from './load.ts'
import { processorMillis } from './machine.ts'
import { type BareServer, connect, openPlatform, type Platform, startBareServer, timeCommand } from './platform.ts'
import type { Scope } from './scope.ts'

const warmUpSeconds = 2
const loadSeconds = 1 // many short rounds make disturbed ones easy to tell apart

const requests = group({
  async setUp(scope) {
    const platform = await openPlatform(scope)
    await platform.start()
    const client = await connect(scope, platform)
    await seedApps(client, 1000) // enough for both sides to use their index
    await client.query(`create table bench_app (like app including defaults including identity, primary key (id))`)
    await client.query(`create unique index on bench_app (name)`)
    const { rows } = await client.query(`select id from app where name = 'app-000001'`)
    const bare = await startBareServer(scope, platform)
    return { platform, bare, appId: rows[0].id as string }
  },
  benchmarks: [
    {
      name: 'app-get',
      title: 'GET /v1/apps/{name}, requests/s',
      target: { atLeast: 0.7 },
      async run({ platform, bare, appId }) {
        const load: Load = {
          method: 'GET',
          token: platform.token,
          paths: ['/v1/apps/app-000001'],
        }
        const ratio = await compareLoads([platform, load], [bare, { ...load, paths: [`/app/${appId}`] }])
        return rateRatio(ratio, 'bare Fastify route, one primary-key SELECT')
      },
    },
    {
      name: 'app-create',
      title: 'POST /v1/apps, requests/s',
      target: { atLeast: 0.5 },
      async run({ platform, bare }) {
        const body = '{"app_name":"made-{n}","org_slug":"personal"}'
        const load: Load = { method: 'POST', token: platform.token, paths: ['/v1/apps'], body }
        const ratio = await compareLoads([platform, load], [bare, { ...load, paths: ['/app'] }])
        return rateRatio(ratio, 'bare Fastify route, one INSERT')
      },
    },
  ],
})

const size = group({
  async setUp(scope) {
    const few = await openSeeded(scope, 100)
    const many = await openSeeded(scope, 100_000)
    const client = await connect(scope, many)
    await client.query(`insert into org (id, slug, name) values ('beside', 'beside', 'Beside')`)
    await seedApps(client, 100, { orgSlug: 'beside', prefix: 'beside-' })
    return { few, many }
  },
  benchmarks: [
    {
      name: 'app-get-among-many',
      title: 'time of GET by name with 100,000 apps',
      target: { atMost: 1.3 },
      async run({ few, many }) {
        const ofSize = (platform: Platform, apps: number) => readsOf(platform, someOf(apps).map(getPath))
        return timeAmongMany(ofSize(few, 100), ofSize(many, 100_000))
      },
    },
    {
      name: 'app-list-among-many',
      title: 'time of a list by organization (limit=100) with 100,000 apps in it',
      target: { atMost: 1.3 },
      async run({ few, many }) {
        // The pages are spread over the whole list; 100 apps fit on one page.
        const pages = someOf(100_000 - 100).map((n) => `${pageOf('personal')}&cursor=${cursorAfter(n)}`)
        return timeAmongMany(readsOf(few, [pageOf('personal')]), readsOf(many, pages))
      },
    },
    {
      name: 'app-list-beside-many',
      title: 'time of a list by organization (limit=100) with 100,000 apps in another one',
      target: { atMost: 1.3 },
      async run({ few, many }) {
        return timeAmongMany(readsOf(few, [pageOf('personal')]), readsOf(many, [pageOf('beside')]))
      },
    },
  ],
})

const idleSeconds = 10

const start = group({
  async setUp(scope) {
    const platform = await openPlatform(scope)
    await platform.start()
    return platform
  },
  benchmarks: [
    {
      name: 'memory-first-start',
      title: 'idle resident memory of API and worker after the first start of a home',
      target: { atMost: 150 },
      run: idleMemory,
    },
    {
      name: 'memory',
      title: 'idle resident memory of API and worker',
      target: { atMost: 150 },
      async run(platform) {
        await platform.stop()
        await platform.start()
        return idleMemory(platform)
      },
    },
    {
      name: 'up',
      title: 'time from berth up until the API answers, with the state database running',
      target: { atMost: 2 },
      async run(platform) {
        return startTimes(platform, () => platform.stop())
      },
    },
    {
      name: 'up-after-down',
      title: 'time from berth up until the API answers, after berth down',
      target: { atMost: 2 },
      async run(platform) {
        return startTimes(platform, async () => {
          await platform.stop()
          await platform.down()
        })
      },
    },
    {
      name: 'help',
      title: 'time of berth --help',
      target: { atMost: 250 },
      async run({ environment }) {
        await timeCommand(environment, '--help')
        const times = await repeat(20, () => timeCommand(environment, '--help'))
        return { value: median(times), unit: 'ms', reference: '', note: `20 runs, ${rangeText(times)} ms` }
      },
    },
  ],
})

const batch = 2_000

const work = group({
  async setUp(scope) {
    const platform = await openPlatform(scope)
    await platform.startWorker()
    return connect(scope, platform)
  },
  benchmarks: [
    {
      name: 'work-rate',
      title: 'trivial resources that one worker process reconciles',
      target: { atLeast: 300 },
      async run(client) {
        await bringToRest(client, batch / 4)
        const rates = await repeat(5, () => bringToRest(client, batch))
        const note = `5 times ${batch} apps to delete, ${rangeText(rates)} per second`
        return { value: median(rates), unit: '/s', reference: '', note }
      },
    },
    {
      name: 'work-wake',
      title: 'time from the commit of the enqueue to the end of the step, idle worker',
      target: { atMost: 20 },
      async run(client) {
        const times = await repeat(50, () => wakeMillis(client))
        const note = `50 wake-ups, ${rangeText(times, 1)} ms; includes the commit, the wake-up, the lease and the whole step`
        return { value: median(times), unit: 'ms', reference: '', note }
      },
    },
  ],
})

export const foundation = [requests, size, start, work]

type Side = [server: BareServer, load: Load]

interface LoadRatio extends Ratio {
  /** The median rates and the CPU time per request, which other load on the machine affects least. */
  detail: string
}

async function compareLoads(measured: Side, reference: Side): Promise<LoadRatio> {
  for (const [server, load] of [measured, reference]) await applyLoad(server.url, load, warmUpSeconds)
  const costs: Record<'measured' | 'reference', number[]> = { measured: [], reference: [] }
  const ratio = await interleave(
    () => applyAndNoteCost(measured, costs.measured),
    () => applyAndNoteCost(reference, costs.reference),
  )
  const rates = `${ratio.measured.toFixed(0)} and ${ratio.reference.toFixed(0)} requests/s with ${loadGenerator()}`
  const micros = [median(costs.measured), median(costs.reference)] as const
  const time = `${micros[0].toFixed(0)} and ${micros[1].toFixed(0)} µs of CPU time per request`
  const share = `(${(micros[1] / micros[0]).toFixed(2)} ×)`
  return { ...ratio, detail: `${rates}; ${time} ${share}; ${ratio.note}` }
}

/** Returns requests per second; adds the CPU time of server and state database per request to `costs`. */
async function applyAndNoteCost([server, load]: Side, costs: number[]): Promise<number> {
  const processes = server.processes()
  const before = processorMillis(processes)
  const { requests, seconds } = await applyLoad(server.url, load, loadSeconds)
  costs.push(((processorMillis(processes) - before) / requests) * 1000)
  return requests / seconds
}

function rateRatio({ median, detail, disturbed }: LoadRatio, reference: string): Measurement {
  return { value: median, unit: '×', reference, note: detail, disturbed }
}

/** The slowdown of a request by many apps: the rate with few apps divided by the rate with many. */
async function timeAmongMany(few: Side, many: Side): Promise<Measurement> {
  const { median, detail, disturbed } = await compareLoads(few, many)
  return { value: median, unit: '×', reference: 'the same with 100 apps', note: `few and many: ${detail}`, disturbed }
}

async function openSeeded(scope: Scope, apps: number): Promise<Platform> {
  const platform = await openPlatform(scope)
  await platform.start()
  await seedApps(await connect(scope, platform), apps)
  return platform
}

/**
 * Ids are random like those of the platform, so that the index is equally scattered. The count is written once instead
 * of by the trigger, because each row version that a transaction leaves behind slows down its next update of that row.
 */
async function seedApps(
  client: pg.Client,
  count: number,
  { orgSlug, prefix } = { orgSlug: 'personal', prefix: 'app-' },
): Promise<void> {
  await client.query('set session_replication_role = replica')
  await client.query(
    `with seeded as (
       insert into app (id, org_id, name, network, enable_subdomains)
       select left(md5(random()::text || n), 16), org.id, $2 || lpad(n::text, 6, '0'), 'default', false
       from generate_series(1, $1::int) n, org where slug = $3
       returning org_id)
     insert into app_count (org_id, shard, apps) select org_id, 0, count(*) from seeded group by org_id`,
    [count, prefix, orgSlug],
  )
  await client.query('reset session_replication_role')
  await client.query('vacuum analyze')
}

function readsOf(platform: Platform, paths: string[]): Side {
  return [platform, { method: 'GET', token: platform.token, paths }]
}

/** Returns a thousand random numbers from 1 to `most`. */
function someOf(most: number): number[] {
  return Array.from({ length: 1000 }, () => 1 + Math.floor(Math.random() * most))
}

function appName(n: number): string {
  return `app-${String(n).padStart(6, '0')}`
}

function getPath(n: number): string {
  return `/v1/apps/${appName(n)}`
}

function pageOf(orgSlug: string): string {
  return `/v1/apps?org_slug=${orgSlug}&limit=100`
}

function cursorAfter(n: number): string {
  return Buffer.from(appName(n)).toString('base64url')
}

async function idleMemory(platform: Platform): Promise<Measurement> {
  const headers = { authorization: `Bearer ${platform.token}` }
  await (await fetch(`${platform.url}/v1/apps?org_slug=personal`, { headers })).text()
  await pause(idleSeconds * 1000)
  const note = `VmRSS ${idleSeconds} s after the first request`
  return { value: platform.memoryMb(), unit: 'MB', reference: '', note, disturbed: false }
}

async function startTimes(platform: Platform, before: () => Promise<void>): Promise<Measurement> {
  const times = await repeat(5, async () => {
    await before()
    return (await platform.start()) / 1000
  })
  return { value: median(times), unit: 's', reference: '', note: `5 starts, ${rangeText(times, 2)} s` }
}

let made = 0

/** Inserts apps without resources in the state `deleting`, and their work rows, in the caller's transaction. */
async function insertWork(client: pg.Client, count: number): Promise<void> {
  await client.query(
    `with fresh as (
       insert into app (id, org_id, name, network, enable_subdomains, state)
       select left(md5(random()::text || n), 16), org.id, 'gone-' || n, 'default', false, 'deleting'
       from generate_series($1::int + 1, $1::int + $2::int) n, org where slug = 'personal'
       returning id)
     insert into work (kind, resource_id) select 'app', id from fresh`,
    [made, count],
  )
  await client.query('notify work')
  made += count
}

async function workLeft(client: pg.Client): Promise<boolean> {
  const { rows } = await client.query('select exists (select from work) as left')
  return rows[0].left
}

/** Returns resources per second. */
async function bringToRest(client: pg.Client, count: number): Promise<number> {
  await client.query('begin')
  await insertWork(client, count)
  const started = performance.now()
  await client.query('commit')
  while (await workLeft(client)) await pause(10)
  return count / ((performance.now() - started) / 1000)
}

/**
 * Returns the milliseconds on the database clock from just before the commit to the start of the transaction that
 * records the result of the step. The step starts before that transaction, so the value is never too low.
 */
async function wakeMillis(client: pg.Client): Promise<number> {
  await pause(50 + Math.random() * 100) // independent of the worker's poll interval
  await client.query('begin')
  await insertWork(client, 1)
  const { rows } = await client.query<{ at: string }>('select extract(epoch from clock_timestamp())::text as at')
  await client.query('commit')
  while (await workLeft(client)) await pause(5)
  const last = await client.query('select extract(epoch from at)::text as at from event order by id desc limit 1')
  return (Number(last.rows[0].at) - Number(rows[0]!.at)) * 1000
}
