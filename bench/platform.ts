import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { chmodSync, closeSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs'
import { get } from 'node:http'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import pg from 'pg'
import { childrenOf } from './machine.ts'
import type { Scope } from './scope.ts'

const launcher = new URL('../berth', import.meta.url).pathname
const bareServer = new URL('bare-server.ts', import.meta.url).pathname
const run = promisify(execFile)

/** A real platform with its own home, controlled through its commands and its API. */
export interface Platform {
  url: string
  readonly token: string
  database: pg.ClientConfig
  /** Returns the milliseconds until the API answers, including the launcher. */
  start(): Promise<number>
  /** Stops the control plane; supervised processes keep running. */
  stop(): Promise<void>
  down(): Promise<void>
  /** Starts a worker process without the API. */
  startWorker(): Promise<void>
  /** The pids of the last started process and of the state database. */
  processes(): number[]
  /** The resident memory of the last started process. */
  memoryMb(): number
  environment: Record<string, string>
}

function quotaList(): string {
  const names = ['apps', 'machines', 'volumes', 'sandboxes', 'clusters', 'disk_gb', 'commands', 'sockets']
  return names.map((name) => `${name}=unlimited`).join(',')
}

export async function openPlatform(scope: Scope, parent = tmpdir()): Promise<Platform> {
  const home = mkdtempSync(join(parent, 'berth-bench-'))
  scope.defer(() => rmSync(home, { recursive: true, force: true }))
  chmodSync(home, 0o711) // the state database runs as another user
  const port = await freePort()
  const environment = {
    PATH: process.env.PATH ?? '',
    HOME: process.env.HOME ?? '/',
    BERTH_HOME: home,
    BERTH_API_LISTEN: `127.0.0.1:${port}`,
    BERTH_SANDBOX_LISTEN: '127.0.0.1:0',
    BERTH_EDGE_LISTEN: '127.0.0.1:0',
    // The registry of the benchmarks listens on loopback.
    BERTH_OUTBOUND_ALLOW: '127.0.0.1',
    // One organization creates everything that is measured.
    BERTH_QUOTAS: quotaList(),
  }
  const log = join(home, 'bench.log')
  let child: ChildProcess | undefined
  const command = (name: string) => spawnLogged(launcher, [name], log, environment)
  const down = async () => void (await run(launcher, ['down'], { env: environment }))
  scope.defer(down)
  scope.defer(() => end(child, 'SIGKILL'))

  return {
    url: `http://127.0.0.1:${port}`,
    get token() {
      return readFileSync(join(home, 'token'), 'utf8').trim()
    },
    database: { host: join(home, 'run/state'), port: 5432, user: 'berth', database: 'berth' },
    environment,
    async start() {
      const started = performance.now()
      child = command('up')
      await until(child, log, () => answers(`http://127.0.0.1:${port}/healthz`))
      return performance.now() - started
    },
    stop: () => end(child, 'SIGTERM'),
    down,
    async startWorker() {
      child = command('worker')
      await until(child, log, async () => readFileSync(log, 'utf8').includes(`"pid":${child!.pid},"home"`))
    },
    processes() {
      const database = Number(readFileSync(join(home, 'state/data/postmaster.pid'), 'utf8').split('\n')[0])
      return [child!.pid!, ...childrenOf(database)]
    },
    memoryMb() {
      const status = readFileSync(`/proc/${child!.pid}/status`, 'utf8')
      return Number(/VmRSS:\s+(\d+) kB/.exec(status)![1]) / 1024
    },
  }
}

export type BareServer = Pick<Platform, 'url' | 'processes'>

/** Starts the bare server on the state database of a platform. */
export async function startBareServer(scope: Scope, platform: Platform): Promise<BareServer> {
  const { database, environment } = platform
  const port = await freePort()
  const setting = JSON.stringify({ database: { ...database, max: 10 }, port })
  const log = join(environment.BERTH_HOME!, 'bare.log')
  const child = spawnLogged(process.execPath, [bareServer, setting], log, environment)
  scope.defer(() => end(child, 'SIGKILL'))
  await until(child, log, () => answers(`http://127.0.0.1:${port}/`))
  return { url: `http://127.0.0.1:${port}`, processes: () => [child.pid!, ...platform.processes().slice(1)] }
}

export async function connect(scope: Scope, { database }: Platform): Promise<pg.Client> {
  const client = new pg.Client(database)
  client.on('error', () => {}) // the database stops before this connection is closed
  await client.connect()
  scope.defer(() => client.end())
  return client
}

/** Returns the milliseconds that a command takes. */
export async function timeCommand(environment: Record<string, string>, ...args: string[]): Promise<number> {
  const started = performance.now()
  await run(launcher, args, { env: environment })
  return performance.now() - started
}

// The child gets its own process group, so that Ctrl-C reaches only the benchmark, which then cleans up in order.
function spawnLogged(program: string, args: string[], log: string, env: Record<string, string>): ChildProcess {
  const file = openSync(log, 'a')
  const child = spawn(program, args, { env, stdio: ['ignore', file, file], detached: true })
  closeSync(file)
  return child
}

async function end(child: ChildProcess | undefined, signal: NodeJS.Signals): Promise<void> {
  if (!child || child.exitCode !== null || child.signalCode !== null) return
  const ended = new Promise((resolve) => child.once('exit', resolve))
  child.kill(signal)
  await ended
}

async function until(child: ChildProcess, log: string, holds: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 60_000
  while (!(await holds())) {
    const tail = () => readFileSync(log, 'utf8').split('\n').slice(-5).join('\n')
    if (child.exitCode !== null) throw new Error(`${child.spawnargs.join(' ')} exited: ${tail()}`)
    if (performance.now() > deadline) throw new Error(`${child.spawnargs.join(' ')} is not ready after 60 s: ${tail()}`)
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}

/** Any response counts. */
function answers(url: string): Promise<boolean> {
  return new Promise((resolve) => {
    get(url, { agent: false }, (reply) => {
      reply.resume()
      resolve(true)
    }).on('error', () => resolve(false))
  })
}

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })
}
