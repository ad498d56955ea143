import { execFileSync } from 'node:child_process'
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { boxAddress } from '../src/model/network.ts'
import {
  compare,
  edgeProcesses,
  query,
  readAddresses,
  type Side,
  serviceConfig,
  servicePort,
  startHaproxy,
} from './edge.ts'
import { group, interleave, median, rangeText } from './framework.ts'
import { openPlatform, type Platform } from './platform.ts'
import type { Scope } from './scope.ts'
import { askSteadily, percentile } from './steady.ts'

const name = 'bench'
const host = `${name}.berth.localhost`
const apps = 1000
const latencyRequests = 1_500
const steadySeconds = 3

interface Fixture {
  platform: Platform
  ours: Side
  haproxy: Side
  direct: Side
  config: object
  machines: string[]
}

const edgeApp = group({
  async setUp(scope): Promise<Fixture> {
    const platform = await openPlatform(scope)
    await platform.start()
    const { edge } = await readAddresses(platform)
    const config = machineConfig(await makeRoot(scope))
    await call(platform, 'POST', '/v1/apps', { app_name: name, org_slug: 'personal' })
    await call(platform, 'POST', `/v1/apps/${name}/ip_assignments`, { type: 'shared_v4' })
    const first = await startMachine(platform, config)
    await seedApps(platform)
    const address = await addressOf(platform, first)
    const ours: Side = { url: edge, host, processes: () => edgeProcesses(edge) }
    const haproxy = await startHaproxy(scope, { host, address, port: servicePort })
    const direct: Side = { url: `http://${address}:${servicePort}`, host, processes: () => [] }
    return { platform, ours, haproxy, direct, config, machines: [first] }
  },
  benchmarks: [
    {
      name: 'edge-apps',
      title: 'HTTP through the edge to a machine of an app, requests/s',
      target: { atLeast: 0.45 },
      async run({ ours, haproxy }) {
        const { ratio, note } = await compare(ours, haproxy)
        const { median: value, disturbed } = ratio
        return { value, unit: '×', reference: 'HAProxy in front of the same machine', note, disturbed }
      },
    },
    {
      name: 'edge-apps-p99',
      title: '99th percentile latency at half of the maximum rate of the edge',
      target: { atMost: 3 },
      async run({ ours, haproxy }) {
        const most = await askSteadily(ours, { rate: 100_000, seconds: 0.2 })
        const whole = most.latencies.length / (most.latencies.at(-1)! / 1000)
        const rate = Math.floor(whole / 2)
        const p99 = async (side: Side) => {
          const { latencies, failed } = await askSteadily(side, { rate, seconds: steadySeconds })
          if (failed > 0) throw new Error(`${failed} requests to ${side.url} failed`)
          return percentile(latencies, 0.99)
        }
        const ratio = await interleave(
          () => p99(ours),
          () => p99(haproxy),
        )
        const times = `${ratio.measured.toFixed(2)} and ${ratio.reference.toFixed(2)} ms`
        const note = `${times} at ${rate} requests/s over 32 connections; ${ratio.note}`
        return {
          value: ratio.median,
          unit: '×',
          reference: 'HAProxy at the same rate',
          note,
          disturbed: ratio.disturbed,
        }
      },
    },
    {
      name: 'edge-apps-latency',
      title: 'latency that the edge adds to a request',
      target: { atMost: 1 },
      async run({ ours, direct }) {
        const added: number[] = []
        for (let round = 0; round < 5; round++) added.push((await oneByOne(ours)) - (await oneByOne(direct)))
        const note = `medians of ${latencyRequests} sequential requests, minus the medians without the edge; rounds ${rangeText(added, 2)}`
        return { value: median(added), unit: 'ms', reference: '', note }
      },
    },
    {
      name: 'edge-apps-update',
      title: 'failed requests during rolling updates and restarts of the control plane',
      target: { atMost: 0 },
      async run({ platform, ours, config, machines }) {
        machines.push(await startMachine(platform, config))
        const load = askSteadily(ours, { rate: 500, seconds: 30 })
        let isOver = false
        load.finally(() => {
          isOver = true
        })
        let updates = 0
        let restarts = 0
        while (!isOver) {
          for (const id of machines) {
            const { instance_id } = (await call(platform, 'POST', `/v1/apps/${name}/machines/${id}`, { config })) as {
              instance_id: string
            }
            await started(platform, id, instance_id)
            updates += 1
          }
          if (isOver) break
          await platform.stop()
          await platform.start()
          restarts += 1
        }
        const { latencies, failed } = await load
        const worst = `slowest ${latencies.at(-1)!.toFixed(0)} ms`
        const note = `of ${latencies.length + failed} at 500/s, during ${updates} updates and ${restarts} restarts; ${worst}`
        return { value: failed, unit: 'requests', reference: '', note }
      },
    },
  ],
})

export const edgeApps = [edgeApp]

/** Creates a root file system with HAProxy as the server, because it is fast. */
async function makeRoot(scope: Scope): Promise<string> {
  const directory = mkdtempSync(join(tmpdir(), 'berth-root-'))
  scope.defer(() => rmSync(directory, { recursive: true, force: true }))
  chmodSync(directory, 0o755)
  const program = execFileSync('sh', ['-c', 'command -v haproxy || echo /usr/sbin/haproxy'], {
    encoding: 'utf8',
  }).trim()
  const libraries = execFileSync('ldd', [program], { encoding: 'utf8' }).match(/\/\S+/g) ?? []
  for (const file of [program, ...libraries]) {
    mkdirSync(dirname(`${directory}/root${file}`), { recursive: true })
    copyFileSync(file, `${directory}/root${file}`)
  }
  for (const empty of ['tmp', 'etc', 'dev', 'proc']) mkdirSync(`${directory}/root/${empty}`, { recursive: true })
  writeFileSync(`${directory}/root/etc/haproxy.cfg`, serviceConfig)
  execFileSync('tar', ['-C', `${directory}/root`, '-cf', `${directory}/root.tar`, '.'])
  return `${directory}/root.tar`
}

function machineConfig(root: string): object {
  return {
    image: `tar:${root}`,
    init: { exec: ['/usr/sbin/haproxy', '-db', '-f', '/etc/haproxy.cfg'] },
    // HAProxy finishes running requests on this signal.
    stop_config: { signal: 'SIGUSR1', timeout: '10s' },
    services: [
      {
        protocol: 'tcp',
        internal_port: servicePort,
        ports: [{ port: 80, handlers: ['http'] }],
        concurrency: { type: 'requests', soft_limit: 500, hard_limit: 1000 },
      },
    ],
  }
}

async function startMachine(platform: Platform, config: object): Promise<string> {
  const { id, instance_id } = (await call(platform, 'POST', `/v1/apps/${name}/machines`, { config })) as {
    id: string
    instance_id: string
  }
  await started(platform, id, instance_id)
  return id
}

async function started(platform: Platform, id: string, version: string): Promise<void> {
  await call(platform, 'GET', `/v1/apps/${name}/machines/${id}/wait?state=started&version=${version}&timeout=60`)
}

async function call(platform: Platform, method: string, path: string, body?: object): Promise<unknown> {
  const reply = await fetch(`${platform.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${platform.token}` },
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
  const text = await reply.text()
  if (!reply.ok) throw new Error(`${method} ${path}: ${reply.status} ${text}`)
  return JSON.parse(text)
}

/** Inserts apps with an address and a machine each; they get no requests. */
async function seedApps(platform: Platform): Promise<void> {
  await query(
    platform,
    `with apps as (
       insert into app (id, org_id, name, network, enable_subdomains)
       select 'seeded-' || n, (select id from org limit 1), 'seeded-' || n, 'default', false
       from generate_series(1, ${apps - 1}) n returning id),
     ips as (
       insert into ip (app_id, ip, type, shared) select id, '127.0.0.99', 'shared_v4', true from apps)
     insert into machine (id, app_id, name, state, region, instance_id, config, network_number, wanted, slot)
     select id, id, id, 'stopped', 'local', id, '{"image": "none", "services": [{"internal_port": 8080,
       "ports": [{"port": 80, "handlers": ["http"]}]}]}', (select number from network limit 1), false,
       split_part(id, '-', 2)::int from apps`,
  )
  await pause(1_000)
}

async function addressOf(platform: Platform, id: string): Promise<string> {
  const home = Number(readFileSync(`${platform.environment.BERTH_HOME}/number`, 'utf8'))
  const [{ slot }] = (await query(platform, `select slot from machine where id = '${id}'`)) as [{ slot: number }]
  return boxAddress(home, slot)
}

/** Returns the median latency of sequential requests. */
async function oneByOne({ url, host }: Side): Promise<number> {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const times: number[] = []
  for (let count = 0; count < latencyRequests; count++) {
    const began = performance.now()
    await new Promise<void>((resolve, reject) => {
      request(url, { agent, headers: { host } }, (reply) => reply.resume().on('end', resolve))
        .on('error', reject)
        .end()
    })
    times.push(performance.now() - began)
  }
  agent.destroy()
  return median(times)
}
