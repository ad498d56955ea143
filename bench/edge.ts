import { execFile, execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { promisify } from 'node:util'
import pg from 'pg'
import { group, interleave, type Ratio } from './framework.ts'
import { childrenOf, processorMillis } from './machine.ts'
import { openPlatform, type Platform } from './platform.ts'
import type { Scope } from './scope.ts'

const run = promisify(execFile)

const loadSeconds = 2
const warmUpSeconds = 2
const cores = availableParallelism()
const name = 'bench'
const host = `${name}.sandbox.localhost`
export const servicePort = 8080

export interface Side {
  url: string
  /** The Host field of the requests. */
  host: string
  processes(): number[]
}

const edge = group({
  async setUp(scope) {
    const platform = await openPlatform(scope)
    await platform.start()
    const addresses = await readAddresses(platform)
    await startService(platform, addresses.sandbox)
    await seedRoutes(platform)
    const ours: Side = { url: addresses.edge, host, processes: () => edgeProcesses(addresses.edge) }
    const haproxy = await startHaproxy(scope, { host, address: await addressOf(platform), port: servicePort })
    return { ours, haproxy }
  },
  benchmarks: [
    {
      name: 'edge-http',
      title: 'HTTP through the edge to a service of a sandbox, requests/s',
      target: { atLeast: 0.45 },
      async run({ ours, haproxy }: { ours: Side; haproxy: Side }) {
        const { ratio, note } = await compare(ours, haproxy)
        const { median: value, disturbed } = ratio
        return { value, unit: '×', reference: 'HAProxy in front of the same service', note, disturbed }
      },
    },
  ],
})

export const edges = [edge]

/** Compares the requests per second of both sides; the note contains the CPU time per request. */
export async function compare(ours: Side, haproxy: Side): Promise<{ ratio: Ratio; note: string }> {
  for (const side of [ours, haproxy]) await load(side, warmUpSeconds)
  const micros: Record<'ours' | 'theirs', number[]> = { ours: [], theirs: [] }
  const ratio = await interleave(
    () => loadAndNote(ours, micros.ours),
    () => loadAndNote(haproxy, micros.theirs),
  )
  const rates = `${ratio.measured.toFixed(0)} and ${ratio.reference.toFixed(0)} requests/s`
  const cost = `${middle(micros.ours)} and ${middle(micros.theirs)} µs of CPU time per request`
  const note = `${rates} with ${cores} workers and threads, wrk with 32 connections, 1,000 routes; ${cost}; ${ratio.note}`
  return { ratio, note }
}

/** Waits for the file, which is written once all listeners answer. */
export async function readAddresses(platform: Platform): Promise<{ api: string; sandbox: string; edge: string }> {
  const file = `${platform.environment.BERTH_HOME}/run/addresses.json`
  for (const deadline = Date.now() + 30_000; ; await pause(20)) {
    if (existsSync(file)) return JSON.parse(readFileSync(file, 'utf8'))
    if (Date.now() > deadline) throw new Error('the platform has not written its addresses')
  }
}

async function loadAndNote(side: Side, micros: number[]): Promise<number> {
  const before = processorMillis(side.processes())
  const { requests, rate } = await load(side, loadSeconds)
  micros.push(((processorMillis(side.processes()) - before) * 1000) / requests)
  return rate
}

async function load({ url, host }: Side, seconds: number): Promise<{ requests: number; rate: number }> {
  const { stdout } = await run('wrk', ['-t1', '-c32', `-d${seconds}s`, '-H', `Host: ${host}`, `${url}/`])
  if (/Non-2xx|Socket errors/.test(stdout)) throw new Error(`requests to ${url} failed: ${stdout}`)
  return {
    requests: Number(/(\d+) requests in/.exec(stdout)![1]),
    rate: Number(/Requests\/sec:\s+([\d.]+)/.exec(stdout)![1]),
  }
}

function middle(values: number[]): string {
  return values.toSorted((a, b) => a - b)[values.length >> 1]!.toFixed(0)
}

// HAProxy is the service, because it is fast enough for the edge to be the bottleneck.
export const serviceConfig = `global
  nbthread 1
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 5s
frontend service
  bind 0.0.0.0:${servicePort}
  http-request return status 200 content-type text/plain string "an answer of about sixty bytes, as a small service gives"
`

async function startService(platform: Platform, sandboxUrl: string): Promise<void> {
  const call = async (method: string, path: string, body: string) => {
    const headers = { authorization: `Bearer ${platform.token}` }
    const reply = await fetch(`${sandboxUrl}/v1/sandboxes${path}`, { method, body, headers })
    const text = await reply.text()
    if (!reply.ok) throw new Error(`${method} ${path}: ${reply.status} ${text}`)
  }
  await call('POST', '', JSON.stringify({ name, url_settings: { auth: 'public' } }))
  await call('PUT', `/${name}/fs/write?path=/home/sprite/haproxy.cfg`, serviceConfig)
  const definition = {
    cmd: '/usr/sbin/haproxy',
    args: ['-db', '-f', '/home/sprite/haproxy.cfg'],
    http_port: servicePort,
  }
  await call('PUT', `/${name}/services/web?duration=1s`, JSON.stringify(definition))
}

/** Inserts as many routes as a home can have; they get no requests. */
async function seedRoutes(platform: Platform): Promise<void> {
  await query(
    platform,
    `insert into sandbox (id, org_id, name, slot, state, url_auth, private_access, labels, environment, memory_mb, cpus,
       storage_gb, region)
     select 'seeded-' || slot, (select id from org limit 1), 'seeded-' || slot, slot, 'cold', 'public', 'admins', '{}', '{}',
       512, 1, 1, 'local'
     from generate_series(20, 1019) slot`,
  )
}

async function addressOf(platform: Platform): Promise<string> {
  const home = Number(readFileSync(`${platform.environment.BERTH_HOME}/number`, 'utf8'))
  const [{ slot }] = (await query(platform, `select slot from sandbox where name = '${name}'`)) as [{ slot: number }]
  const address = (100 << 24) + (64 << 16) + (home * 1024 + slot) * 4 + 2
  return [24, 16, 8, 0].map((shift) => (address >>> shift) & 255).join('.')
}

export async function query(platform: Platform, sql: string): Promise<unknown[]> {
  const client = new pg.Client(platform.database)
  await client.connect()
  const { rows } = await client.query(sql).finally(() => client.end())
  return rows
}

export function edgeProcesses(url: string): number[] {
  const { port } = new URL(url)
  const listening = listeners.get(port) ?? findListener(port)
  listeners.set(port, listening)
  return [listening, ...childrenOf(listening)]
}

const listeners = new Map<string, number>()

function findListener(port: string): number {
  const text = execFileSync('ss', ['-ltnpH', `sport = :${port}`], { encoding: 'utf8' })
  return Number(/pid=(\d+)/.exec(text)![1])
}

let haproxies = 0

export async function startHaproxy(
  scope: Scope,
  { host, address, port: targetPort }: { host: string; address: string; port: number },
): Promise<Side> {
  const directory = mkdtempSync(join(tmpdir(), 'berth-haproxy-'))
  scope.defer(() => rmSync(directory, { recursive: true, force: true }))
  const port = 20_000 + (process.pid % 10_000) + haproxies++
  const routes = Array.from({ length: 1000 }, (_, n) => `seeded-${n}.sandbox.localhost service`)
  writeFileSync(join(directory, 'hosts'), `${[...routes, `${host} service`].join('\n')}\n`)
  writeFileSync(
    join(directory, 'haproxy.cfg'),
    `global
  nbthread ${cores}
  maxconn 4000
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 5s
  http-reuse always
frontend edge
  bind 127.0.0.1:${port}
  option forwardfor
  use_backend %[req.hdr(host),lower,map(${directory}/hosts,nothing)]
backend nothing
  http-request return status 404
backend service
  server service ${address}:${targetPort}
`,
  )
  const child = spawn('haproxy', ['-db', '-f', join(directory, 'haproxy.cfg')], { stdio: 'inherit' })
  scope.defer(() => void child.kill('SIGKILL'))
  const url = `http://127.0.0.1:${port}`
  for (const deadline = Date.now() + 5_000; ; await pause(20)) {
    const reply = await fetch(url).catch(() => undefined)
    if (reply) break
    if (Date.now() > deadline) throw new Error('HAProxy does not answer')
  }
  return { url, host, processes: () => [child.pid!] }
}
