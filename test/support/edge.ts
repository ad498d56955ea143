import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import {
  createServer,
  request as httpRequest,
  type IncomingMessage,
  type RequestListener,
  type RequestOptions,
  type Server,
} from 'node:http'
import {
  type AddressInfo,
  connect,
  createServer as createTcpServer,
  type Socket,
  type Server as TcpServer,
} from 'node:net'
import { afterAll, afterEach, beforeAll } from 'vitest'
import type { HttpContext } from '../../src/edge/http/context.ts'
import { Http2Upstreams } from '../../src/edge/http/http2-upstream.ts'
import { ReplayCache } from '../../src/edge/http/replay/replay-cache.ts'
import { SandboxConnector } from '../../src/edge/http/sandbox-connector.ts'
import { createAccess } from '../../src/edge/routing/access.ts'
import { LoadBalancer } from '../../src/edge/routing/balancer.ts'
import { type Feed, startFeed } from '../../src/edge/routing/feed.ts'
import { RouteTable } from '../../src/edge/routing/table.ts'
import { createEdgeServer, createIdGenerator, type EdgeServer, sweepUpstreams } from '../../src/edge/server.ts'
import { TrustedProxies } from '../../src/edge/tcp/trusted-proxy.ts'
import { UpstreamPool } from '../../src/edge/tcp/upstream-pool.ts'
import type { EdgeTls } from '../../src/edge/tls/server.ts'
import { startEdgeRequests } from '../../src/reconcile/edge-request.ts'
import { type Database, openDatabase } from '../../src/store/db.ts'
import { edgeRequestChannel, requestFromEdge } from '../../src/store/edge-request.ts'
import { listen } from '../../src/store/listen.ts'
import { edgeUser, useDatabase } from './db.ts'
import { until } from './until.ts'

export interface Backend {
  port: number
  /** All requests whose head has arrived. */
  requests: IncomingMessage[]
  server: Server
}

export interface NewSandbox {
  name?: string
  orgId?: string
  auth?: 'public' | 'sprite'
  access?: 'admins' | 'org_users'
  state?: 'cold' | 'running'
  port?: number | null
  wanted?: boolean
  health?: object
}

export interface NewApp {
  name?: string
  orgId?: string
  network?: string
  subdomains?: boolean
  /** With null the app has no address. */
  ip?: { ip: string; shared?: boolean; type?: string } | null
}

export interface NewMachine {
  id?: string
  state?: string
  region?: string
  cordoned?: boolean
  /** The port of its program. */
  port?: number
  /** Merged into the default service, which has ports 80 and 443. */
  service?: object
  services?: object[]
  config?: object
}

export interface Reply {
  status: number
  headers: IncomingMessage['headers']
  bytes: Buffer
  body: string
}

export const webPorts = [
  { port: 80, handlers: ['http'] },
  { port: 443, handlers: ['tls', 'http'] },
]

/** Runs the edge in this process, on a real state database. Sandboxes and machines are only rows; their programs run here. */
export function useEdge(
  options: {
    waitTimeoutMs?: number
    maxConnections?: number
    tls?: EdgeTls
    workers?: number
    trustedProxies?: string[]
    /** Without a control plane nothing is started. */
    hasControlPlane?: boolean
  } = {},
) {
  const database = useDatabase()
  const opened: { close(): unknown }[] = []
  let own: Database
  let feed: Feed
  let requests: { stop(): Promise<void> } | undefined
  let server: EdgeServer
  let listener: TcpServer
  let slot = 0
  let machineSlot = 1023

  const edge = {
    database,
    port: 0,
    table: new RouteTable('app.test'),
    balancer: undefined as unknown as LoadBalancer,
    errors: [] as unknown[],
    resendBudget: { usedBytes: 0, maxBytes: 50_000_000 },
    encoders: { open: 0, max: 100 },

    async backend(listener: RequestListener, port = 0): Promise<Backend> {
      const requests: IncomingMessage[] = []
      const made = createServer((request, reply) => {
        requests.push(request)
        listener(request, reply)
      })
      made.on('clientError', (_error, socket) => socket.destroy())
      await new Promise<void>((resolve) => made.listen(port, '127.0.0.1', resolve))
      opened.push({ close: () => stop(made) })
      return { port: (made.address() as AddressInfo).port, requests, server: made }
    },

    async org(id: string): Promise<string> {
      await database.db.query('insert into org (id, slug, name) values ($1, $1, $1) on conflict do nothing', [id])
      return id
    },

    /** Returns the host name once the edge knows it. */
    async sandbox({ name = `s-${randomBytes(5).toString('hex')}`, ...given }: NewSandbox): Promise<string> {
      slot += 1
      const {
        auth = 'public',
        access = 'org_users',
        state = 'running',
        port = null,
        wanted = true,
        health = null,
      } = given
      const orgId = await edge.org(given.orgId ?? 'acme')
      await database.db.query(
        `insert into sandbox (id, org_id, name, slot, state, url_auth, private_access, labels, environment, memory_mb, cpus,
           storage_gb, region) values ($1, $2, $1, $3, $4, $5, $6, '{}', '{}', 512, 1, 1, 'local')`,
        [name, orgId, slot, state, auth, access],
      )
      if (port !== null) {
        await database.db.query(
          `insert into service (sandbox_id, name, definition, http_port, wanted, health)
           values ($1, 'web', '{"cmd":"web","args":[],"needs":[],"env":{},"dir":null}', $2, $3, $4)`,
          [name, port, wanted, health],
        )
      }
      const host = `${name}.sandbox.test`
      const isKnown = () =>
        edge.table.find(host) !== undefined && (port === null || edge.table.findSandbox(host)?.service?.name === 'web')
      await until(isKnown)
      return host
    },

    /** Creates an app, by default with a shared address. Its host name is `<name>.app.test`. */
    async app({ name = `a-${randomBytes(5).toString('hex')}`, ...given }: NewApp = {}): Promise<string> {
      const { network = 'default', subdomains = false, ip = { ip: '127.0.0.9', shared: true } } = given
      const orgId = await edge.org(given.orgId ?? 'acme')
      await database.db.query(
        'insert into app (id, org_id, name, network, enable_subdomains) values ($1, $2, $1, $3, $4)',
        [name, orgId, network, subdomains],
      )
      if (ip) {
        const { shared = false, type = shared ? 'shared_v4' : 'v4' } = ip
        await database.db.query('insert into ip (app_id, ip, type, shared) values ($1, $2, $3, $4)', [
          name,
          ip.ip,
          type,
          shared,
        ])
      }
      return name
    },

    /** Returns the id once the edge knows the machine. */
    async machine(app: string, { id = randomBytes(7).toString('hex'), ...given }: NewMachine = {}): Promise<string> {
      machineSlot -= 1
      const { state = 'started', region = 'local', cordoned = false, port = 1 } = given
      const services = given.services ?? [{ internal_port: port, protocol: 'tcp', ports: webPorts, ...given.service }]
      await database.db.query(
        `with net as (
           insert into network (org_id, name) select org_id, network from app where id = $2
           on conflict (org_id, name) do update set name = excluded.name returning number)
         insert into machine (id, app_id, name, state, region, instance_id, config, network_number, wanted, slot, cordoned)
         select $1, $2, $1, $3, $4, 'v' || $1, $5, number, true, $6, $7 from net`,
        [id, app, state, region, { image: 'none', ...given.config, services }, machineSlot, cordoned],
      )
      await until(() => edge.table.apps.get(app)?.targets.some(({ machineId }) => machineId === id) ?? false)
      return id
    },

    /** Creates a machine and its program. */
    async backendOf(app: string, listener: RequestListener, machine: NewMachine = {}) {
      const backend = await edge.backend(listener)
      return { ...backend, id: await edge.machine(app, { ...machine, port: backend.port }) }
    },

    /** Accepts connections at another address. */
    async listen(address: string, port = 0): Promise<number> {
      const further = createTcpServer({ noDelay: true }, (socket) => server.accept(socket))
      await new Promise<void>((resolve, reject) => {
        further.once('error', reject)
        further.listen(port, address, resolve)
      })
      opened.push({ close: () => void further.close() })
      return (further.address() as AddressInfo).port
    },

    /** Sends a request to a host name or to an app by its name. */
    async ask(host: string, options: RequestOptions & { body?: string | Buffer } = {}): Promise<Reply> {
      const { body, ...rest } = options
      const headers = { host: host.includes('.') ? host : `${host}.app.test`, ...(rest.headers as object) }
      const call = httpRequest({ host: '127.0.0.1', port: edge.port, agent: false, ...rest, headers })
      call.end(body)
      const [reply] = (await once(call, 'response')) as [IncomingMessage]
      // The response may arrive before the whole request has been sent.
      call.on('error', () => {})
      const chunks: Buffer[] = []
      for await (const chunk of reply) chunks.push(chunk)
      const bytes = Buffer.concat(chunks)
      return { status: reply.statusCode!, headers: reply.headers, bytes, body: bytes.toString() }
    },

    connect(): Socket {
      const socket = connect(edge.port, '127.0.0.1')
      socket.on('error', () => {})
      opened.push({ close: () => socket.destroy() })
      return socket
    },

    /** Sends bytes, and returns everything that arrives until the edge closes the connection. */
    async raw(text: string | Buffer): Promise<string> {
      const socket = edge.connect()
      const chunks: Buffer[] = []
      socket.on('data', (chunk) => chunks.push(chunk))
      socket.write(text, 'latin1')
      await new Promise((resolve) => socket.once('close', resolve))
      return Buffer.concat(chunks).toString('latin1')
    },
  }

  beforeAll(async () => {
    own = openDatabase({ ...database.config, user: edgeUser, max: 3 })
    if (options.hasControlPlane !== false)
      requests = startEdgeRequests({
        db: database.db,
        listen: (onRequest) => listen(database.config, edgeRequestChannel, onRequest),
        onError: (error) => edge.errors.push(error),
      })
    const { table } = edge
    const waitTimeoutMs = options.waitTimeoutMs ?? 5_000
    edge.balancer = new LoadBalancer({
      apps: table.apps,
      wake: (id) => requestFromEdge(own, 'wake_machine', id),
      waitTimeoutMs,
    })
    listener = createTcpServer({ noDelay: true }, (socket) => server.accept(socket))
    await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve))
    edge.port = (listener.address() as AddressInfo).port
    const context = createContext(waitTimeoutMs)
    feed = startFeed({
      domain: 'app.test',
      worker: { index: 0, count: options.workers ?? 1 },
      table,
      db: own,
      databaseConfig: { ...database.config, user: edgeUser },
      sandboxDomain: 'sandbox.test',
      boxes: 'host',
      onChange() {
        sweepUpstreams(context, Date.now())
        edge.balancer.retryWaiting()
      },
      onTokenChange: () => context.access.recheck(),
      onError() {},
    })
    await feed.filled
    server = createEdgeServer({ context, tls: options.tls, maxConnections: options.maxConnections ?? 5_000 })
  })

  function createContext(waitTimeoutMs: number): HttpContext {
    const { table, balancer, resendBudget, encoders } = edge
    const pool = new UpstreamPool()
    const wake = (route: { id: string }) => requestFromEdge(own, 'wake_sandbox', route.id)
    return {
      table,
      pool,
      http2: new Http2Upstreams((endpoint) => pool.dial(endpoint)),
      access: createAccess(own),
      sandboxes: new SandboxConnector({ table, pool, wake, waitTimeoutMs }),
      balancer,
      replays: new ReplayCache(),
      edgePort: edge.port,
      region: 'local',
      resendBudget,
      encoders,
      domains: ['sandbox.test', 'app.test'],
      trustedProxies: new TrustedProxies(options.trustedProxies ?? []),
      nextId: createIdGenerator(),
      onError: (error) => edge.errors.push(error),
    }
  }

  afterEach(async () => {
    await Promise.all(opened.splice(0).map((each) => each.close()))
  })

  afterAll(async () => {
    listener?.close()
    await server?.drain(0)
    await feed?.close()
    await own?.close()
    await requests?.stop()
  })

  return edge
}

async function stop(server: Server): Promise<void> {
  server.closeAllConnections()
  await new Promise((resolve) => server.close(resolve))
}
