import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import type { FastifyInstance } from 'fastify'
import { createMetrics, type Metrics } from '../api/http/metrics.ts'
import type { Area } from '../api/http/problem.ts'
import { buildServer } from '../api/http/server.ts'
import { platformRoutes, platformSockets, sandboxRoutes, sandboxSockets } from '../api/routes.ts'
import { CommandError } from '../cli/errors.ts'
import { findClusterGap } from '../drivers/confine/probe.ts'
import { ensureAuthority } from '../drivers/host/certificate.ts'
import { findUserName, measureMemory } from '../drivers/host/facts.ts'
import { edgeUid, type Home, writeToken } from '../drivers/host/home.ts'
import { isRoot } from '../drivers/host/process.ts'
import { identityKey } from '../drivers/machine/identity-key.ts'
import type { LocalSocket } from '../drivers/network/driver.ts'
import { listenBehindProxy } from '../drivers/network/local-socket.ts'
import { resolveHostName } from '../drivers/network/lookup.ts'
import { findPrivateNetworkProblem } from '../drivers/network/private.ts'
import { clusterPaths } from '../drivers/postgres/paths.ts'
import { listInstalledExtensions } from '../drivers/postgres/toolchain/toolchain.ts'
import { createOpenConnections, type OpenConnections } from '../live/connection.ts'
import type { LiveContext } from '../live/context.ts'
import { type AdoptionRun, createAdoptionRun } from '../live/postgres/adopt-run.ts'
import { restoreSessions } from '../live/sandbox/exec-restore.ts'
import { createExecSessions, type ExecSessions } from '../live/sandbox/exec-sessions.ts'
import { OpenSessions } from '../model/account/open-sessions.ts'
import { defaultPools } from '../model/app/ip.ts'
import { machineHeader } from '../model/network.ts'
import type { PlatformSettings } from '../model/settings.ts'
import { listTokenExpiries, tokenFeed } from '../store/account/token.ts'
import { type MachineFeed, machineFeed } from '../store/app/machine-feed.ts'
import { type SandboxFeed, sandboxFeed } from '../store/sandbox/feed.ts'
import { type Config, installationsOf, type Listen, refuseOpenListeners } from './config.ts'
import { type ControlPlane, closeControlPlane, openControlPlane, startLoop } from './control-plane.ts'
import { nameUserCommand } from './doctor/finding.ts'
import { startCertificateRenewal } from './edge/certificate.ts'
import { apiSocket, ensureEdge } from './edge/service.ts'
import { openMachineSockets } from './inside/machine.ts'
import { openSandboxSockets } from './inside/sandbox.ts'
import { refuseTakenListeners } from './listen.ts'
import { type Addresses, announcement, hasSystemd, publicUrls, readyLine, type Startup } from './startup.ts'
import { stopSignal } from './stop.ts'
import { version } from './version.ts'

/** Runs the control plane in this process until a signal stops it. Workloads keep running without it. */
export async function up(config: Config, startup: Startup): Promise<void> {
  refuseOpenListeners(config)
  await refuseTakenListeners(config)
  refuseNamelessUser()
  const stopping = stopSignal(() => startup.step('Stopping the control plane; workloads keep running'))
  const opened = await openControlPlane(config, startup)
  const sandboxChanges = sandboxFeed(() => opened.databaseConfig)
  const machineChanges = machineFeed(() => opened.databaseConfig)
  const sandboxSockets = openSandboxSockets(opened, sandboxChanges)
  const machineSockets = openMachineSockets(opened, machineChanges)
  const world = { ...opened.world, boxes: sandboxSockets.boxes, machines: machineSockets.machines }
  const controlPlane = { ...opened, world }
  startup.step('Starting the edge')
  const edge = await ensureEdge(controlPlane)
  const certificate = startCertificateRenewal(controlPlane)
  const metrics = createMetrics(version)
  const sessions = createExecSessions()
  const connections = createOpenConnections()
  await restoreSessions({ db: opened.db, boxes: world.boxes, sessions, connections })
  const adoption = createAdoptionRun()
  const tokenChanges = tokenFeed(() => opened.databaseConfig)
  const openSessions = new OpenSessions({ listValid: (hashes) => listTokenExpiries(opened.db, hashes) })
  tokenChanges.subscribe(() => openSessions.check())
  let apiUrl = ''
  const [privateNetworkGap, clusterGap] = await Promise.all([findPrivateNetworkProblem(), findClusterGap()])
  const settings = {
    ...settingsOf(config, controlPlane.home, edge.port),
    issuer: () => config.issuer ?? apiUrl,
    privateNetworkGap,
    clusterGap,
  }
  const parts = { metrics, sandboxChanges, machineChanges, sessions, connections, adoption, openSessions, settings }
  const servers = {
    platform: openServer(controlPlane, parts, 'platform'),
    sandbox: openServer(controlPlane, parts, 'sandbox'),
  }
  startup.step('Opening the APIs')
  const addresses = {
    api: await startServer(servers.platform, 'BERTH_API_LISTEN', config.apiListen),
    sandbox: await startServer(servers.sandbox, 'BERTH_SANDBOX_LISTEN', config.sandboxListen),
    edge: edge.url,
  }
  apiUrl = addresses.api
  await sandboxSockets.start(servers.sandbox)
  await machineSockets.start(servers.platform)
  const machineListener = await listenForMachines(controlPlane, servers.platform)
  const worker = startLoop(controlPlane, (turn) => metrics.observeTurn(turn.kind, turn.result, turn.seconds))
  writeAddresses(controlPlane.home, addresses)
  announce(controlPlane, addresses, startup)

  const signal = await stopping
  controlPlane.log.info({ signal }, 'stopping the control plane')
  certificate.stop()
  rmSync(controlPlane.home.addressesFile, { force: true })
  await sessions.close() // before the servers, so that clients that follow a command still receive its end
  await Promise.all([
    servers.platform.close(),
    servers.sandbox.close(),
    sandboxSockets.close(),
    machineSockets.close(),
    machineListener.close(),
    worker.stop(),
  ])
  openSessions.stop()
  await Promise.all([sandboxChanges.close(), machineChanges.close(), tokenChanges.close()])
  await closeControlPlane(controlPlane)
}

/** PostgreSQL does not run for a uid without a name. Checked first, so that a failed start leaves no processes behind. */
function refuseNamelessUser(): void {
  if (findUserName() !== undefined) return
  throw new CommandError(
    `user ${process.getuid?.()} has no name on this machine, and PostgreSQL needs one; add it (${nameUserCommand()}), or start Berth as another user`,
  )
}

/** The parts of the request context that read from this host. */
type HostAccess = Pick<
  LiveContext,
  'readClusterLog' | 'readAuthority' | 'identityKey' | 'writeRootToken' | 'lookUpName'
>

interface ServerParts {
  metrics: Metrics
  sandboxChanges: SandboxFeed
  machineChanges: MachineFeed
  sessions: ExecSessions
  connections: OpenConnections
  adoption: AdoptionRun
  openSessions: OpenSessions
  settings: PlatformSettings
}

function openServer(controlPlane: ControlPlane, parts: ServerParts, area: Area): FastifyInstance {
  const { metrics, sandboxChanges, machineChanges, sessions, connections, adoption, openSessions, settings } = parts
  const { config, db, world, log } = controlPlane
  const tls = config.tls && { cert: readFileSync(config.tls.certFile), key: readFileSync(config.tls.keyFile) }
  return buildServer({
    area,
    ...(area === 'platform'
      ? { routes: platformRoutes, sockets: platformSockets }
      : { routes: sandboxRoutes, sockets: sandboxSockets }),
    context: {
      ...world,
      db,
      ...openHostAccess(controlPlane),
      sandboxFeed: sandboxChanges,
      machineFeed: machineChanges,
      sessions,
      connections,
      adoption,
      settings,
    },
    openSessions,
    log: log.child({ area }),
    metrics,
    rateLimit: config.rateLimit,
    ...(tls ? { tls } : {}),
  })
}

function openHostAccess({ config, home, supervisor, world }: ControlPlane): HostAccess {
  return {
    readClusterLog: (id, lines) => supervisor.readLog(clusterPaths(home, id).service, lines),
    readAuthority: async () => readFileSync((await ensureAuthority(home)).certificateFile, 'utf8'),
    identityKey: identityKey(home, world.encryptionKey),
    writeRootToken: config.token === undefined ? (token) => writeToken(home, token) : undefined,
    lookUpName: (hostname, known) => resolveHostName(hostname, known, config.outboundDns),
  }
}

function settingsOf(config: Config, home: Home, edgePort: number): Omit<PlatformSettings, 'issuer'> {
  return {
    regions: config.regions,
    defaultRegion: config.regions?.[0] ?? 'local',
    pitrDays: config.pitrDays,
    installedExtensions: {
      '16': listInstalledExtensions('16', installationsOf('16', config)),
      '17': listInstalledExtensions('17', installationsOf('17', config)),
    },
    pgHost: config.pgHost,
    homeNumber: home.number,
    ipPools: config.ipPools ?? defaultPools(home.number),
    memoryMb: Math.floor(measureMemory().totalBytes / 1024 ** 2),
    ...publicUrls(config, edgePort),
  }
}

async function startServer(server: FastifyInstance, setting: string, { host, port }: Listen): Promise<string> {
  try {
    return await server.listen({ host, port, backlog: 1024 })
  } catch (cause) {
    throw new Error(`listen on ${host}:${port} (${setting})`, { cause })
  }
}

/** Listens for requests of machines, which arrive through the edge. Only the user of the edge can open the socket. */
function listenForMachines({ home }: ControlPlane, server: FastifyInstance): Promise<LocalSocket> {
  const owner = { mode: 0o600, uid: isRoot() ? edgeUid(home) : undefined }
  return listenBehindProxy(apiSocket(home), { ...owner, maxConnections: 1024 }, (request, response, from) => {
    request.headers[machineHeader] = from
    server.routing(request, response)
  })
}

/** Written atomically and only when the platform answers, because other processes wait for this file. */
function writeAddresses(home: Home, addresses: Addresses): void {
  const temporary = `${home.addressesFile}.${process.pid}`
  writeFileSync(temporary, `${JSON.stringify({ ...addresses, pid: process.pid })}\n`)
  renameSync(temporary, home.addressesFile)
}

function announce({ config, home, log }: ControlPlane, addresses: Addresses, startup: Startup): void {
  log.info({ ...addresses, home: home.path, version }, 'control plane is ready')
  if (startup.log !== 'terminal') return
  const headline = readyLine(startup.seconds())
  console.log(`\n${announcement({ config, addresses, headline, isDetached: false, hasSystemd: hasSystemd() })}`)
}
