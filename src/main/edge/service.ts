import { chmodSync, renameSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { findResolvers } from '../../drivers/box/network.ts'
import { readOpenFileLimit } from '../../drivers/host/facts.ts'
import { readTextIfPresent } from '../../drivers/host/file.ts'
import { edgeUid, type Home } from '../../drivers/host/home.ts'
import { withoutNewPrivileges } from '../../drivers/host/privilege.ts'
import { isRoot } from '../../drivers/host/process.ts'
import { canBind, isAnswering, reachableHost } from '../../drivers/network/port.ts'
import { findPrivateNetworkProblem } from '../../drivers/network/private.ts'
import { ensureUnreachableRoutes } from '../../drivers/network/unreachable.ts'
import { s6Supervisor } from '../../drivers/s6/supervisor.ts'
import { type EdgeSettings, stopTimeoutMs } from '../../edge/settings.ts'
import type { BoxNetwork } from '../../edge/types.ts'
import { certificateKey } from '../../model/app/certificate.ts'
import { defaultPools } from '../../model/app/ip.ts'
import { apiPort } from '../../model/network.ts'
import { waitUntil } from '../../model/poll.ts'
import type { Config, Listen } from '../config.ts'
import type { ControlPlane } from '../control-plane.ts'
import { version } from '../version.ts'
import { ensureOwnCertificate } from './certificate.ts'
import { ensureEdgeLogin } from './database.ts'
import { ensureSocketHolder, isHeld, withHeldSockets } from './holder-service.ts'

const service = 'edge'
const program = new URL('process.ts', import.meta.url).pathname
/** Equal to the timeout of the state database: starting takes long on a host where everything starts at once. */
const startTimeoutSeconds = 60

export interface RunningEdge {
  url: string
  port: number
}

function settingsFile(home: string): string {
  return `${home}/edge.json`
}

/** The port of the running edge, which may run without the control plane. */
export async function findEdgePort(home: string): Promise<number | undefined> {
  const supervisor = s6Supervisor({ treeDirectory: `${home}/tree`, logDirectory: `${home}/log` })
  const state = await supervisor.inspectService(service)
  const text = state.is === 'up' ? readTextIfPresent(settingsFile(home)) : undefined
  return text === undefined ? undefined : (JSON.parse(text) as EdgeSettings).port
}

/** Starts the edge. If it runs already and its settings changed, it replaces its workers. */
export async function ensureEdge(controlPlane: ControlPlane): Promise<RunningEdge> {
  const { config, home, supervisor } = controlPlane
  const file = settingsFile(home.path)
  const previous = readTextIfPresent(file)
  const listen = { host: config.edgeListen.host, port: await choosePort(config.edgeListen, previous) }
  const ownTls = await ensureOwnCertificate(controlPlane)
  const boxes = await findBoxNetwork(controlPlane)
  if (typeof boxes !== 'string') await closeRanges(controlPlane)
  const names = await findNameServer(controlPlane, boxes)
  const databases = names && { homeNumber: names.homeNumber, host: reachableHost(config.pgListen) }
  const api = names && findApiSettings(controlPlane, listen)
  const own = createSettings(controlPlane, listen, boxes)
  const socketHolder = await ensureSocketHolder(home, supervisor)
  const compose = (database: EdgeSettings['database']): string => {
    const settings: EdgeSettings = { ...own, database, ownTls: ownTls.files, names, databases, api, socketHolder }
    return `${JSON.stringify(settings)}\n`
  }
  const state = await supervisor.inspectService(service)
  const earlier: EdgeSettings | undefined = previous && JSON.parse(previous)
  // The password changes whenever the workers are replaced anyway, and never under running ones.
  const isKept = earlier !== undefined && state.is === 'up' && compose(earlier.database) === previous
  const text = compose(await ensureEdgeLogin(controlPlane, isKept ? earlier : undefined))
  if (state.is !== 'up' && !(await isHeld(socketHolder, listen.port))) await checkPortIsFree(listen)
  if (text !== previous) writeSecret(file, text)
  await supervisor.ensureService(service, {
    command: withHeldSockets(
      socketHolder,
      withoutNewPrivileges([process.execPath, '--disable-warning=ExperimentalWarning', program, file]),
    ),
    env: { NODE_COMPILE_CACHE: `${home.cache}/node` },
    stopTimeoutSeconds: stopTimeoutMs / 1000 + 2,
  })
  if ((text !== previous || ownTls.isNew) && state.is === 'up') await supervisor.signalService(service, 'SIGHUP')
  await waitUntilAnswering(controlPlane, listen)
  return { url: urlOf(config, listen), port: listen.port }
}

async function findBoxNetwork({ home, world, log }: ControlPlane): Promise<BoxNetwork> {
  try {
    const { network } = await world.boxes.isolation()
    return network === 'own' ? { homeNumber: home.number } : network
  } catch (err) {
    log.warn({ err }, 'finding the network of sandboxes failed; they cannot be reached')
    return 'none'
  }
}

/** Keeps what is meant for a box that is down on this host. The routes do not survive a reboot. */
async function closeRanges({ home, log }: ControlPlane): Promise<void> {
  try {
    await ensureUnreachableRoutes(home)
  } catch (err) {
    log.warn({ err }, 'setting routes failed; connections to a program that is down may leave this host')
  }
}

async function findNameServer({ home, log }: ControlPlane, boxes: BoxNetwork): Promise<EdgeSettings['names']> {
  const gap = typeof boxes === 'string' ? 'machines have no network of their own' : await findPrivateNetworkProblem()
  if (gap === undefined) return { homeNumber: home.number, upstreams: findResolvers() }
  log.warn({ why: gap }, 'private networks are not available')
  return null
}

/** The edge listens for machines on one address; that fails if another socket has taken the port on all addresses. */
function findApiSettings({ config, home, log }: ControlPlane, edge: Listen): EdgeSettings['api'] {
  const isTaken = [config.apiListen, config.sandboxListen, edge].some(
    ({ host, port }) => isUnspecified(host) && port === apiPort,
  )
  if (isTaken) log.warn({ port: apiPort }, 'machines cannot use the API: its port is taken on all addresses')
  return isTaken ? null : { homeNumber: home.number, socket: apiSocket(home) }
}

function isUnspecified(host: string): boolean {
  return host.includes(':') && /^[0:]+$/.test(host)
}

/** The socket on which the control plane serves the API to machines. */
export function apiSocket(home: Pick<Home, 'run'>): string {
  return `${home.run}/api.sock`
}

type OwnSettings = Omit<EdgeSettings, 'database' | 'ownTls' | 'names' | 'databases' | 'api' | 'socketHolder'>

function createSettings({ config, home, world }: ControlPlane, listen: Listen, boxes: BoxNetwork): OwnSettings {
  return {
    version,
    ...listen,
    workers: config.edgeWorkers,
    sandboxDomain: config.sandboxDomain,
    domain: config.domain,
    boxes,
    tls: config.tls ?? null,
    certificateKey: certificateKey(world.encryptionKey).toString('base64'),
    region: config.regions?.[0] ?? 'local',
    trustedProxies: config.trustedProxies,
    pools: config.ipPools ?? defaultPools(home.number),
    autostopSeconds: config.autostopSeconds,
    uid: isRoot() ? edgeUid(home) : null,
    ...findLimits(config.edgeWorkers),
    logLevel: config.logLevel,
  }
}

/**
 * The limits of each worker, which follow from its file descriptors: a connection takes one and its upstream another; a UDP
 * flow takes one, and each UDP port another.
 */
function findLimits(workers: number): Pick<EdgeSettings, 'maxConnections' | 'maxFlows'> {
  const files = Math.min(readOpenFileLimit() ?? 1024, 200_000) - 100
  const maxFlows = Math.min(Math.floor(files / 8), 4_096)
  return { maxConnections: Math.min(Math.floor(files / 2) - maxFlows, Math.ceil(100_000 / workers)), maxFlows }
}

/** A free port is chosen once and kept, because the URLs of sandboxes contain it. */
async function choosePort({ host, port }: Listen, previous: string | undefined): Promise<number> {
  if (port !== 0) return port
  const earlier: Partial<EdgeSettings> = previous ? JSON.parse(previous) : {}
  if (earlier.host === host && earlier.port) return earlier.port
  return pickPort(host)
}

function pickPort(host: string): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>()
  const server = createServer()
  server.once('error', reject)
  server.listen({ host, port: 0 }, () => {
    const { port } = server.address() as { port: number }
    server.close(() => resolve(port))
  })
  return promise
}

async function checkPortIsFree({ host, port }: Listen): Promise<void> {
  if (await canBind(host, port)) return
  throw new Error(`${host}:${port} is in use or not an address of this host; set BERTH_EDGE_LISTEN to another address`)
}

/** The file contains the password of the edge for the state database, and keys. */
function writeSecret(file: string, text: string): void {
  const temporary = `${file}.${process.pid}`
  writeFileSync(temporary, text, { mode: 0o600 })
  chmodSync(temporary, 0o600)
  renameSync(temporary, file)
}

async function waitUntilAnswering({ supervisor }: ControlPlane, { host, port }: Listen): Promise<void> {
  if (await waitUntil(() => isAnswering(host, port), startTimeoutSeconds)) return
  const log = supervisor.readLog(service, 10).join('\n')
  throw new Error(`start the edge: it did not answer within ${startTimeoutSeconds} s. Its log ends with:\n${log}`)
}

function urlOf(config: Config, { host, port }: Listen): string {
  return `${config.tls ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}`
}
