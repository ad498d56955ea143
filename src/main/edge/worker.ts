// A worker of the edge. It serves the connections that the edge process accepts and hands to it.
import type { Socket as UdpSocket } from 'node:dgram'
import { readFileSync } from 'node:fs'
import { flushCompileCache } from 'node:module'
import type { Socket } from 'node:net'
import { setTimeout } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ensureResolverAddress } from '../../drivers/network/private.ts'
import { type NameServer, startNameServer } from '../../edge/dns/server.ts'
import type { HttpContext } from '../../edge/http/context.ts'
import { Http2Upstreams } from '../../edge/http/http2-upstream.ts'
import { ReplayCache } from '../../edge/http/replay/replay-cache.ts'
import { SandboxConnector } from '../../edge/http/sandbox-connector.ts'
import { createAccess } from '../../edge/routing/access.ts'
import { listAppListens } from '../../edge/routing/app-listen.ts'
import { startAutostop } from '../../edge/routing/autostop.ts'
import { LoadBalancer } from '../../edge/routing/balancer.ts'
import { type Feed, startFeed } from '../../edge/routing/feed.ts'
import { RouteTable } from '../../edge/routing/table.ts'
import { createEdgeServer, createIdGenerator, type EdgeServer, sweepUpstreams } from '../../edge/server.ts'
import type { EdgeSettings } from '../../edge/settings.ts'
import { apiListen } from '../../edge/tcp/api.ts'
import { TrustedProxies } from '../../edge/tcp/trusted-proxy.ts'
import { UpstreamPool } from '../../edge/tcp/upstream-pool.ts'
import { Certificates } from '../../edge/tls/certificate.ts'
import type { EdgeTls } from '../../edge/tls/server.ts'
import type { WorkerShare } from '../../edge/types.ts'
import { DatagramProxy } from '../../edge/udp/datagram-proxy.ts'
import { type Database, openDatabase } from '../../store/db.ts'
import { requestFromEdge } from '../../store/edge-request.ts'
import { ParentPermits, ParentSockets, reportToParent } from './parent.ts'
import { openEdgeLog, readEdgeSettings } from './settings.ts'
import type { WorkerCommand } from './worker-message.ts'

// A worker that has not loaded the routes by then reports ready all the same, and answers requests with 503.
const routesTimeoutMs = 2_000
/** Requests may take this long to finish when the edge process was killed and a new one has new workers. */
const orphanTimeoutMs = 10_000
/** Longer than a new edge process takes to start. */
const orphanDatagramMs = 10_000
/** Memory for request bodies that may have to be sent again. */
const maxResendBytes = 128 * 1_048_576
/** Further responses are sent uncompressed. */
const maxEncoders = 500

/** The parts that most functions below need. */
interface WorkerParts {
  settings: EdgeSettings
  share: WorkerShare
  log: Logger
  db: Database
  table: RouteTable
  balancer: LoadBalancer
  names: NameServer | undefined
  permits: ParentPermits
  sockets: ParentSockets
}

async function runWorker(file: string, index: number): Promise<void> {
  const settings = readEdgeSettings(file)
  const log = openEdgeLog(settings)
  const names = await openNameServer(settings, log)
  const certificate = readCertificate(settings)
  dropPrivileges(settings)
  const share = { index, count: settings.workers }
  const parts = createParts({ settings, log, names, share })
  const context = createContext(parts)
  const datagrams = createDatagramProxy(parts)
  const feed = startRoutes(parts, context, datagrams)
  startIdleMachineStop(parts)
  const server = createEdgeServer({
    context,
    tls: certificate && createTls(parts, certificate),
    databases: settings.databases,
    api: settings.api,
    maxConnections: settings.maxConnections,
  })
  followParent(parts, server, datagrams)
  await Promise.race([feed.filled, setTimeout(routesTimeoutMs)])
  // Errors before this end the process, which is then started again.
  process.on('uncaughtException', (err) => {
    // The error may concern one request only; those of others finish here while another worker starts.
    log.error({ err }, 'unhandled error; another worker takes over')
    reportToParent({ failed: true })
  })
  reportToParent({ ready: true })
}

/** Binds port 53 while the process still runs as root. */
async function openNameServer({ names }: EdgeSettings, log: Logger): Promise<NameServer | undefined> {
  if (!names) return undefined
  try {
    // The address does not survive a reboot.
    await ensureResolverAddress(names.homeNumber)
    return await startNameServer(names)
  } catch (err) {
    log.error({ err }, 'name server failed to start; machines cannot resolve names')
    return undefined
  }
}

function readCertificate({ tls, ownTls }: EdgeSettings): Pick<EdgeTls, 'cert' | 'key'> | undefined {
  const files = tls ?? ownTls
  if (!files) return undefined
  return { cert: readFileSync(files.certFile, 'utf8'), key: readFileSync(files.keyFile, 'utf8') }
}

/** Called when everything that needs root has been read. */
function dropPrivileges({ uid }: EdgeSettings): void {
  flushCompileCache() // its directory is writable for root only
  if (uid === null) return
  process.setgroups!([uid])
  process.setgid!(uid)
  process.setuid!(uid)
}

function createParts(given: Pick<WorkerParts, 'settings' | 'log' | 'names' | 'share'>): WorkerParts {
  const { settings } = given
  const db = openDatabase({ ...settings.database, max: 3, query_timeout: 5_000 })
  const table = new RouteTable(settings.domain)
  const permits = new ParentPermits()
  const wake = (id: string) => requestFromEdge(db, 'wake_machine', id)
  const balancer = new LoadBalancer({ apps: table.apps, wake, permits })
  return { ...given, db, table, permits, balancer, sockets: new ParentSockets() }
}

function createContext({ settings, log, db, table, balancer }: WorkerParts): HttpContext {
  const pool = new UpstreamPool()
  const wake = (route: { id: string }) => requestFromEdge(db, 'wake_sandbox', route.id)
  return {
    table,
    pool,
    http2: new Http2Upstreams((endpoint) => pool.dial(endpoint)),
    access: createAccess(db),
    sandboxes: new SandboxConnector({ table, pool, wake }),
    balancer,
    replays: new ReplayCache(),
    edgePort: settings.port,
    region: settings.region,
    resendBudget: { usedBytes: 0, maxBytes: maxResendBytes },
    encoders: { open: 0, max: maxEncoders },
    domains: [settings.sandboxDomain, settings.domain],
    // Settings of an older version lack the list, until the control plane has started.
    trustedProxies: new TrustedProxies(settings.trustedProxies ?? []),
    nextId: createIdGenerator(),
    onError: (err) => log.error({ err }, 'request failed'),
  }
}

function createTls({ settings, table, log }: WorkerParts, certificate: Pick<EdgeTls, 'cert' | 'key'>): EdgeTls {
  const key = Buffer.from(settings.certificateKey, 'base64')
  const onError = (err: unknown) => log.error({ err }, 'certificate cannot be used')
  return {
    ...certificate,
    isRequired: settings.tls !== null,
    certificates: new Certificates(table.apps, key, onError),
  }
}

function createDatagramProxy({ settings, share, table, balancer, sockets }: WorkerParts): DatagramProxy {
  const open = (name: string) => sockets.open(name)
  return new DatagramProxy({ apps: table.apps, balancer, worker: share, open, maxFlows: settings.maxFlows })
}

/** Follows the routes, and adapts connections and sockets to each change. */
function startRoutes(parts: WorkerParts, context: HttpContext, datagrams: DatagramProxy): Feed {
  const { settings, share, log, db, table, balancer, names } = parts
  const reportListens = createListenReport(settings, table)
  return startFeed({
    ...settings,
    names,
    worker: share,
    table,
    db,
    databaseConfig: settings.database,
    onChange: () => {
      sweepUpstreams(context, Date.now())
      balancer.retryWaiting()
      reportListens()
      datagrams.update()
    },
    onTokenChange: () => context.access.recheck(),
    onError: (err) => log.warn({ err }, 'route refresh failed; keeping old routes'),
  })
}

/** Reports the sockets that are needed to the parent whenever they change. */
function createListenReport(settings: EdgeSettings, table: RouteTable): () => void {
  let reported: string | undefined
  return () => {
    const listen = [
      ...(settings.api ? [apiListen(settings.api)] : []),
      ...listAppListens(table.apps.all(), settings.port),
      ...table.databases.listListens(),
    ]
    if (listen.join() === reported) return
    reported = listen.join()
    reportToParent({ listen })
  }
}

function startIdleMachineStop({ settings, share, log, db, balancer }: WorkerParts): void {
  startAutostop({
    db,
    takePeaks: () => balancer.takePeaks(),
    worker: share,
    intervalSeconds: settings.autostopSeconds,
    onError: (err) => log.warn({ err }, 'search for idle machines failed; trying again later'),
  })
}

/** Handles the commands of the parent. A worker without its parent gets no connections, so it finishes its requests. */
function followParent(
  { names, permits, sockets, balancer }: WorkerParts,
  server: EdgeServer,
  datagrams: DatagramProxy,
): void {
  const drain = async (timeoutMs: number, datagramMs: number) => {
    names?.close()
    await Promise.all([setTimeout(datagramMs).then(() => datagrams.close()), server.drain(timeoutMs)])
    process.exit(0)
  }
  // Datagrams arrive here until the workers of the next edge process have opened the same ports.
  process.once('disconnect', () => drain(orphanTimeoutMs, datagrams.isIdle ? 0 : orphanDatagramMs))
  process.on('message', (command: WorkerCommand, handle?: Socket | UdpSocket) => {
    if ('connection' in command) {
      reportToParent({ taken: command.connection })
      if (handle) server.accept(handle as Socket) // absent if the client closed the connection meanwhile
    } else if ('bound' in command) sockets.onReply(command.bound, handle as UdpSocket | undefined)
    else if ('asked' in command) permits.onReply(command.asked, command.granted)
    else if ('freed' in command) balancer.permitFreed(command.freed)
    else drain(command.drainMillis, 0)
  })
}

if (import.meta.main) await runWorker(process.argv[2]!, Number(process.argv[3]))
