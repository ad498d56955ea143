import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type RequestListener, request, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll } from 'vitest'
import type { EdgeSettings } from '../../src/edge/settings.ts'
import { holderCommand, withHeldSockets, writeRules } from '../../src/main/edge/holder-service.ts'
import { startEdgeRequests } from '../../src/reconcile/edge-request.ts'
import { edgeRequestChannel } from '../../src/store/edge-request.ts'
import { listen } from '../../src/store/listen.ts'
import { edgeUser, useDatabase } from './db.ts'
import { freePort } from './port.ts'
import { until } from './until.ts'

const program = new URL('../../src/main/edge/process.ts', import.meta.url).pathname

/** An HTTP service in the form of a machine's config. */
export const web = (internal: number, extra: object = {}) => ({
  internal_port: internal,
  protocol: 'tcp',
  ports: [{ port: 80, handlers: ['http'] }],
  ...extra,
})

interface EdgeProcessOptions {
  settings?: Partial<EdgeSettings>
  nodeOptions?: string[]
  /** Keeps the listening sockets in a holder, and starts the process again when it was killed, as s6 does. */
  isSupervised?: boolean
}

/** Runs an edge process with two workers on a real state database. Machines are only rows; their programs run in this process. */
export function useEdgeProcess({
  settings: changes = {},
  nodeOptions = [],
  isSupervised = false,
}: EdgeProcessOptions = {}) {
  const database = useDatabase()
  const directory = mkdtempSync(join(tmpdir(), 'berth-edge-'))
  const opened: Server[] = []
  const file = join(directory, 'edge.json')
  const holderSocket = join(directory, 'sockets')
  let isOver = false
  let slot = 1023
  let requests: { stop(): Promise<void> } | undefined

  const edge = {
    database,
    process: undefined as unknown as ChildProcess,
    holder: undefined as ChildProcess | undefined,
    port: 0,
    log: '',

    /** The next edge process has other settings. */
    write(changed: Partial<EdgeSettings>): void {
      if (changed.port !== undefined) edge.port = changed.port
      Object.assign(changes, changed)
      writeFileSync(file, JSON.stringify(settings()))
    },

    /** Applies other settings to the running process. */
    async change(changed: Partial<EdgeSettings>): Promise<void> {
      const before = edge.log.split('listening').length
      edge.write(changed)
      edge.process.kill('SIGHUP')
      await until(() => edge.log.split('listening').length > before)
    },

    listWorkers(): number[] {
      const text = execFileSync('ps', ['-e', '-o', 'pid=,ppid='], { encoding: 'utf8' })
      const pairs = text.split('\n').map((line) => line.trim().split(/ +/).map(Number))
      return pairs.flatMap(([pid, parent]) => (parent === edge.process.pid ? [pid!] : []))
    },

    listHeld(): string[] {
      const { stdout } = spawnSync('s6-fdholder-list', [holderSocket], { encoding: 'utf8' })
      return stdout.split('\n').filter((name) => name !== '')
    },

    /** With null the app gets its address later. */
    async app(ip: string | null, shared = false): Promise<string> {
      const name = `a-${randomBytes(5).toString('hex')}`
      await database.db.query(
        `insert into app (id, org_id, name, network, enable_subdomains) values ($1, 'acme', $1, 'default', false)`,
        [name],
      )
      if (ip !== null) await edge.give(name, ip, shared)
      return name
    },

    async give(app: string, ip: string, shared = false): Promise<void> {
      const values = [app, ip, shared ? 'shared_v4' : 'v4', shared]
      await database.db.query('insert into ip (app_id, ip, type, shared) values ($1, $2, $3, $4)', values)
    },

    async machine(app: string, services: object[], state = 'started'): Promise<string> {
      const id = randomBytes(7).toString('hex')
      slot -= 1
      await database.db.query(
        `with net as (
           insert into network (org_id, name) values ('acme', 'default')
           on conflict (org_id, name) do update set name = excluded.name returning number)
         insert into machine (id, app_id, name, state, region, instance_id, config, network_number, wanted, slot)
         select $1, $2, $1, $3, 'local', 'v' || $1, $4, number, true, $5 from net`,
        [id, app, state, { image: 'none', services }, slot],
      )
      return id
    },

    async backend(answer: RequestListener): Promise<number> {
      const server = createServer(answer)
      opened.push(server)
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
      return (server.address() as AddressInfo).port
    },

    async ask(host: string, at = '127.0.0.1', to?: number): Promise<{ status: number; body: string }> {
      const call = request({ host: at, port: to ?? edge.port, agent: false, headers: { host } }).end()
      const [reply] = (await once(call, 'response')) as [IncomingMessage]
      let body = ''
      for await (const chunk of reply) body += chunk
      return { status: reply.statusCode!, body }
    },

    /** Waits until every worker knows the app; with 16 connections each worker gets some. */
    untilAnswered(body: string, host: string, at?: string, to?: number): Promise<void> {
      const ask = () => Promise.all(Array.from({ length: 16 }, () => edge.asked(host, at, to)))
      return until(async () => (await ask()).every((reply) => reply.body === body))
    },

    /** Returns status 0 when the connection fails. */
    asked(host: string, at?: string, to?: number): Promise<{ status: number; body: string }> {
      return edge.ask(host, at, to).catch(() => ({ status: 0, body: '' }))
    },
  }

  function settings(): EdgeSettings {
    return {
      version: 'test',
      host: '127.0.0.1',
      port: edge.port,
      workers: 2,
      sandboxDomain: 'sandbox.test',
      domain: 'app.test',
      boxes: 'host',
      database: { ...database.config, user: edgeUser },
      tls: null,
      ownTls: null,
      certificateKey: Buffer.alloc(32).toString('base64'),
      region: 'local',
      trustedProxies: [],
      pools: [],
      names: null,
      databases: null,
      api: null,
      socketHolder: isSupervised ? holderSocket : null,
      autostopSeconds: 1,
      uid: null,
      maxConnections: 1_000,
      maxFlows: 200,
      logLevel: 'info',
      ...changes,
    }
  }

  function start(): void {
    const command = [process.execPath, ...nodeOptions, program, file]
    const [name = '', ...args] = isSupervised ? withHeldSockets(holderSocket, command) : command
    edge.process = spawn(name, args, { stdio: ['ignore', 'pipe', 'pipe'] })
    for (const stream of [edge.process.stdout!, edge.process.stderr!]) {
      stream.on('data', (text) => {
        edge.log += text
      })
    }
    edge.process.once('exit', () => isSupervised && !isOver && start())
  }

  function startHolder(): void {
    const [name = '', ...args] = holderCommand(writeRules(join(directory, 'rules')), holderSocket)
    edge.holder = spawn(name, args, { stdio: 'inherit' })
    edge.holder.once('exit', () => !isOver && startHolder())
  }

  beforeAll(async () => {
    edge.port = await freePort()
    requests = startEdgeRequests({
      db: database.db,
      listen: (onRequest) => listen(database.config, edgeRequestChannel, onRequest),
      onError: (error) => {
        edge.log += `${error}\n`
      },
    })
    await database.db.query(`insert into org (id, slug, name) values ('acme', 'acme', 'acme')`)
    writeFileSync(file, JSON.stringify(settings()))
    if (isSupervised) startHolder()
    start()
    await until(() => edge.log.includes('listening'))
  })

  afterEach(() => {
    for (const server of opened.splice(0)) {
      server.closeAllConnections()
      server.close()
    }
  })

  afterAll(async () => {
    isOver = true
    if (edge.process?.exitCode === null && edge.process.signalCode === null) {
      edge.process.kill('SIGTERM')
      await once(edge.process, 'exit')
    }
    edge.holder?.kill()
    await requests?.stop()
    rmSync(directory, { recursive: true, force: true })
  })

  return edge
}
