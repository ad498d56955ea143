import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type RequestListener, request, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll } from 'vitest'
import type { EdgeSettings } from '../../src/edge/settings.ts'
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

/** Runs an edge process with two workers on a real state database. Machines are only rows; their programs run in this process. */
export function useEdgeProcess(changes: Partial<EdgeSettings> = {}, nodeOptions: string[] = []) {
  const database = useDatabase()
  const directory = mkdtempSync(join(tmpdir(), 'berth-edge-'))
  const opened: Server[] = []
  let slot = 1023
  let requests: { stop(): Promise<void> } | undefined

  const edge = {
    database,
    process: undefined as unknown as ChildProcess,
    port: 0,
    log: '',

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
      autostopSeconds: 1,
      uid: null,
      maxConnections: 1_000,
      maxFlows: 200,
      logLevel: 'info',
      ...changes,
    }
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
    const file = join(directory, 'edge.json')
    writeFileSync(file, JSON.stringify(settings()))
    edge.process = spawn(process.execPath, [...nodeOptions, program, file], { stdio: ['ignore', 'pipe', 'pipe'] })
    for (const stream of [edge.process.stdout!, edge.process.stderr!]) {
      stream.on('data', (text) => {
        edge.log += text
      })
    }
    await until(() => edge.log.includes('listening'))
  })

  afterEach(() => {
    for (const server of opened.splice(0)) {
      server.closeAllConnections()
      server.close()
    }
  })

  afterAll(async () => {
    if (edge.process?.exitCode === null && edge.process.signalCode === null) {
      edge.process.kill('SIGTERM')
      await once(edge.process, 'exit')
    }
    await requests?.stop()
    rmSync(directory, { recursive: true, force: true })
  })

  return edge
}
