import { chmodSync, renameSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { findResolvers } from '../../drivers/box/network.ts'
import { ensureServerCertificate } from '../../drivers/host/certificate.ts'
import { readOpenFileLimit } from '../../drivers/host/facts.ts'
import { readTextIfPresent } from '../../drivers/host/file.ts'
import type { Home } from '../../drivers/host/home.ts'
import { isRoot } from '../../drivers/host/process.ts'
import { accepts, canBind, localHost } from '../../drivers/network/port.ts'
import { findPrivateGap } from '../../drivers/network/private.ts'
import { s6Supervisor } from '../../drivers/s6/supervisor.ts'
import { type BoxPlaces, type EdgeSettings, stopMillis } from '../../edge/settings.ts'
import { certificateKey } from '../../model/app/certificate.ts'
import { defaultPools } from '../../model/app/ip.ts'
import { apiPort } from '../../model/network.ts'
import { waitUntil } from '../../model/poll.ts'
import type { Config, Listen } from '../config.ts'

import type { ControlPlane } from '../control-plane.ts'
import { version } from '../version.ts'

const service = 'edge'
const program = new URL('process.ts', import.meta.url).pathname
/** As long as the state database has: processes take their time on a machine where everything starts at once. */
const startSeconds = 60

export interface RunningEdge {
  url: string
  port: number
}

function settingsFile(home: string): string {
  return `${home}/edge.json`
}

/** Of an edge that runs, also on without the control plane, with which the other addresses go. */
export async function findEdgePort(home: string): Promise<number | undefined> {
  const supervisor = s6Supervisor({ treeDirectory: `${home}/tree`, logDirectory: `${home}/log` })
  const state = await supervisor.inspectService(service)
  const text = state.is === 'up' ? readTextIfPresent(settingsFile(home)) : undefined
  return text === undefined ? undefined : (JSON.parse(text) as EdgeSettings).port
}

/** Afterwards the edge runs by these settings. It is told of changes and replaces its workers one generation at a time. */
export async function ensureEdge(controlPlane: ControlPlane): Promise<RunningEdge> {
  const { config, home, supervisor } = controlPlane
  const file = settingsFile(home.path)
  const before = readTextIfPresent(file)
  const listen = { host: config.edgeListen.host, port: await choosePort(config.edgeListen, before) }
  const ownTls = await ensureOwnCertificate(controlPlane)
  const boxes = await findBoxes(controlPlane)
  const names = await findNames(controlPlane, boxes)
  const databases = names && { homeNumber: names.homeNumber, host: localHost(config.pgListen) }
  const api = names && findApi(controlPlane, listen)
  const settings = { ...settingsOf(controlPlane, listen, boxes), ownTls: ownTls.files, names, databases, api }
  const text = `${JSON.stringify(settings)}\n`
  const state = await supervisor.inspectService(service)
  if (state.is !== 'up') await refuseTaken(listen)
  if (text !== before) writeSecret(file, text)
  await supervisor.ensureService(service, {
    command: [process.execPath, '--disable-warning=ExperimentalWarning', program, file],
    env: { NODE_COMPILE_CACHE: `${home.cache}/node` },
    stopTimeoutSeconds: stopMillis / 1000 + 2,
  })
  if ((text !== before || ownTls.isNew) && state.is === 'up') await supervisor.signalService(service, 'SIGHUP')
  await waitUntilListening(controlPlane, listen)
  return { url: urlOf(config, listen), port: listen.port }
}

async function findBoxes({ home, world, log }: ControlPlane): Promise<BoxPlaces> {
  try {
    const { network } = await world.boxes.isolation()
    return network === 'own' ? { homeNumber: home.number } : network
  } catch (err) {
    log.warn({ err }, 'sandboxes cannot be reached')
    return 'none'
  }
}

async function findNames({ home, log }: ControlPlane, boxes: BoxPlaces): Promise<EdgeSettings['names']> {
  const gap = typeof boxes === 'string' ? 'machines have no network here' : await findPrivateGap()
  if (gap === undefined) return { homeNumber: home.number, upstreams: findResolvers() }
  log.warn({ why: gap }, 'there are no private networks')
  return null
}

/** Machines have a listener of their own: where another has taken the port for all addresses, there is no room for it. */
function findApi({ config, home, log }: ControlPlane, edge: Listen): EdgeSettings['api'] {
  const everywhere = [config.apiListen, config.sandboxListen, edge].some(
    ({ host, port }) => isUnspecified(host) && port === apiPort,
  )
  if (everywhere) log.warn({ port: apiPort }, 'machines cannot use the API: something listens there for all addresses')
  return everywhere ? null : { homeNumber: home.number, socket: apiSocket(home) }
}

function isUnspecified(host: string): boolean {
  return host.includes(':') && /^[0:]+$/.test(host)
}

/** Where the control plane answers those that the edge leads to it. */
export function apiSocket(home: Pick<Home, 'run'>): string {
  return `${home.run}/api.sock`
}

type CertificateGround = {
  config: Pick<Config, 'domain' | 'sandboxDomain'>
  home: Home
  log: Pick<ControlPlane['log'], 'warn'>
  supervisor: Pick<ControlPlane['supervisor'], 'signalService'>
}

/** For names that have no certificate of their own. */
async function ensureOwnCertificate({ config, home, log }: Omit<CertificateGround, 'supervisor'>) {
  const directory = `${home.path}/edge-tls`
  const hosts = [`*.${config.domain}`, config.domain, `*.${config.sandboxDomain}`, config.sandboxDomain]
  try {
    const isNew = await ensureServerCertificate({ home, directory, name: 'Berth edge', hosts })
    return { isNew, files: { certFile: `${directory}/server.crt`, keyFile: `${directory}/server.key` } }
  } catch (err) {
    log.warn({ err }, 'the edge speaks no TLS')
    return { isNew: false, files: null }
  }
}

const renewalMs = 86_400_000

/** Looks each day whether it has to be made anew, since the control plane may run for years. */
export function keepCertificate(controlPlane: CertificateGround): { stop(): void } {
  const timer = setInterval(() => {
    renewCertificate(controlPlane).catch((err) =>
      controlPlane.log.warn({ err }, 'the edge did not get its new certificate'),
    )
  }, renewalMs)
  return { stop: () => clearInterval(timer) }
}

/** Nobody waits for the edge: its workers are replaced one generation at a time. */
export async function renewCertificate(controlPlane: CertificateGround): Promise<void> {
  const { isNew } = await ensureOwnCertificate(controlPlane)
  if (isNew) await controlPlane.supervisor.signalService(service, 'SIGHUP')
}

type OwnSettings = Omit<EdgeSettings, 'ownTls' | 'names' | 'databases' | 'api'>

function settingsOf(
  { config, home, databaseConfig, world }: ControlPlane,
  listen: Listen,
  boxes: BoxPlaces,
): OwnSettings {
  return {
    version,
    ...listen,
    workers: config.edgeWorkers,
    sandboxDomain: config.sandboxDomain,
    domain: config.domain,
    boxes,
    database: databaseConfig,
    tls: config.tls ?? null,
    certificateKey: certificateKey(world.encryptionKey).toString('base64'),
    region: config.regions?.[0] ?? 'local',
    pools: config.ipPools ?? defaultPools(home.number),
    autostopSeconds: config.autostopSeconds,
    uid: isRoot() ? home.uidStart : null,
    ...capacity(config.edgeWorkers),
    logLevel: config.logLevel,
  }
}

/**
 * Of each worker. A connection takes a file, and so does the one to its target; a flow of datagrams takes one, and a port
 * for them another.
 */
function capacity(workers: number): Pick<EdgeSettings, 'maxConnections' | 'maxFlows'> {
  const files = Math.min(readOpenFileLimit() ?? 1024, 200_000) - 100
  const maxFlows = Math.min(Math.floor(files / 8), 4_096)
  return { maxConnections: Math.min(Math.floor(files / 2) - maxFlows, Math.ceil(100_000 / workers)), maxFlows }
}

/** A free one is chosen once: addresses of sandboxes hold it, and must not change with a restart. */
async function choosePort({ host, port }: Listen, before: string | undefined): Promise<number> {
  if (port !== 0) return port
  const earlier: Partial<EdgeSettings> = before ? JSON.parse(before) : {}
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

async function refuseTaken({ host, port }: Listen): Promise<void> {
  if (await canBind(host, port)) return
  throw new Error(`${host}:${port} is in use or not of this machine; set BERTH_EDGE_LISTEN to another address`)
}

// It may hold the password of an external state database.
function writeSecret(file: string, text: string): void {
  const fresh = `${file}.${process.pid}`
  writeFileSync(fresh, text, { mode: 0o600 })
  chmodSync(fresh, 0o600)
  renameSync(fresh, file)
}

async function waitUntilListening({ supervisor }: ControlPlane, { host, port }: Listen): Promise<void> {
  if (await waitUntil(() => accepts(host, port), startSeconds)) return
  const log = supervisor.readLog(service, 10).join('\n')
  throw new Error(`start the edge: it does not listen after ${startSeconds} s. Its log ends with:\n${log}`)
}

function urlOf(config: Config, { host, port }: Listen): string {
  return `${config.tls ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}`
}
