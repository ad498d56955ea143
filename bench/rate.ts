import type pg from 'pg'
import { interleave, median, type Ratio } from './framework.ts'
import { applyLoad, type Load, loadGenerator } from './load.ts'
import { processorMillis } from './machine.ts'
import { type BareServer, connect, openPlatform } from './platform.ts'
import type { Scope } from './scope.ts'

export type Side = [server: BareServer, load: Load]

/** Compares the rates of both sides; the detail contains the CPU time per request, which other load affects least. */
export async function compareRates(ours: Side, theirs: Side): Promise<Ratio & { detail: string }> {
  // Warms up the JIT compiler.
  for (const [server, load] of [ours, theirs]) await applyLoad(server.url, load, 5)
  const costs: [number[], number[]] = [[], []]
  const ratio = await interleave(
    () => rateOf(ours, costs[0]),
    () => rateOf(theirs, costs[1]),
  )
  const rates = `${ratio.measured.toFixed(0)} and ${ratio.reference.toFixed(0)} requests/s with ${loadGenerator()}`
  const [first, second] = [median(costs[0]), median(costs[1])]
  const time = `${first.toFixed(0)} and ${second.toFixed(0)} µs of CPU time per request (${(second / first).toFixed(2)} ×)`
  return { ...ratio, detail: `${rates}; ${time}; ${ratio.note}` }
}

async function rateOf([server, load]: Side, costs: number[]): Promise<number> {
  const processes = server.processes()
  const before = processorMillis(processes)
  const { requests, seconds } = await applyLoad(server.url, load, 1)
  costs.push(((processorMillis(processes) - before) / requests) * 1000)
  return requests / seconds
}

export async function openSeeded(scope: Scope, count: number): Promise<Side> {
  const platform = await openPlatform(scope)
  await platform.start()
  const ids = await seedClusters(await connect(scope, platform), count)
  const paths = Array.from({ length: 1000 }, () => `/v1/postgres/${ids[Math.floor(Math.random() * ids.length)]}`)
  return [platform, { method: 'GET', token: platform.token, paths }]
}

/** Inserts ready clusters with ports, a backup and a recovery window. Their archives have ended, as they have no receiver. */
async function seedClusters(client: pg.Client, count: number): Promise<string[]> {
  const { rows } = await client.query<{ id: string }>(
    `insert into cluster (id, org_id, name, state, plan, pg_major, disk_size_gb, region, postgis_enabled, pool_mode)
     select left(md5(random()::text || n), 16), org.id, 'seeded-' || n, 'ready', 'basic', '17', 10, 'ams', false, 'session'
     from generate_series(1, $1::int) n, org where slug = 'personal' returning id`,
    [count],
  )
  const ids = rows.map(({ id }) => id)
  await client.query(
    `insert into cluster_port (port, cluster_id, purpose)
     select 20000 + 2 * n + k, id, case k when 0 then 'direct' else 'pooler' end
     from unnest($1::text[]) with ordinality seeded (id, n), generate_series(0, 1) k`,
    [ids],
  )
  await client.query(
    `update cluster set direct_port = port, pooler_port = port + 1
     from cluster_port where cluster_id = cluster.id and purpose = 'direct'`,
  )
  await client.query(
    `with added as (
       insert into archive (cluster_id, epoch, slot, timeline, start_lsn, started_at, ended_at)
       select id, 1, 'berth_1', 1, '0/1000000', now() - interval '1 day', now() from unnest($1::text[]) id
       returning cluster_id, epoch, start_lsn)
     insert into stretch (cluster_id, epoch, from_lsn, latest_at, latest_lsn, ended)
     select cluster_id, epoch, start_lsn, now(), '0/2000000', true from added`,
    [ids],
  )
  await client.query(
    `insert into backup (id, cluster_id, label, state, epoch, timeline, start_lsn, stop_lsn, started_at, stopped_at,
       finished_at, size_bytes)
     select id, id, '20261115-100000F', 'completed', 1, 1, '0/1000000', '0/1000100', at, at, at, 1000000
     from unnest($1::text[]) id, lateral (select now() - interval '1 hour' as at) moment`,
    [ids],
  )
  await client.query('vacuum analyze')
  return ids
}
