import { existsSync, readFileSync } from 'node:fs'
import { get } from 'node:http'
import { get as getOverTls } from 'node:https'
import { listControlProcesses } from '../drivers/host/control-process.ts'
import { type Home, openHome } from '../drivers/host/home.ts'
import type { Supervisor } from '../drivers/s6/driver.ts'
import { isPoolUnmounted } from '../drivers/storage/mount.ts'
import { toRfc3339 } from '../model/time.ts'
import type { Config } from './config.ts'
import { openSupervisor } from './control-plane.ts'
import type { Addresses } from './startup.ts'

export interface StatusReport {
  home: string
  tree: 'up' | 'down'
  api: string | null
  sandbox: string | null
  edge: string | null
  answering: boolean
  services: ServiceReport[]
}

interface ServiceReport {
  name: string
  state: 'up' | 'down'
  pid: number | null
  since: string
}

const answerTimeoutMs = 2_000

export async function status(config: Config): Promise<StatusReport> {
  if (!existsSync(config.home) || isPoolUnmounted(config.home)) {
    return { home: config.home, tree: 'down', api: null, sandbox: null, edge: null, answering: false, services: [] }
  }
  const home = await openHome(config.home, { uidBase: config.uidBase })
  const supervisor = openSupervisor(home)
  const addresses = readAddresses(home)
  const tree = supervisor.inspectTree().is
  return {
    home: home.path,
    tree,
    api: addresses.api ?? null,
    sandbox: addresses.sandbox ?? null,
    edge: addresses.edge ?? null,
    answering: (await findAnsweringPlatform(home)) !== undefined,
    services: await Promise.all(supervisor.listServices().map((name) => describe(supervisor, name, tree === 'up'))),
  }
}

function readAddresses(home: Home): Partial<Addresses & { pid: number }> {
  return existsSync(home.addressesFile) ? JSON.parse(readFileSync(home.addressesFile, 'utf8')) : {}
}

/**
 * Returns the addresses of the platform of this home if it answers. After a crash they are outdated, and another
 * program may have taken the port.
 */
export async function findAnsweringPlatform(home: Home): Promise<Addresses | undefined> {
  const { api, sandbox, edge, pid } = readAddresses(home)
  if (!api || !sandbox || !edge || !pid || !listControlProcesses(home).includes(pid)) return undefined
  return (await isReady(`${api}/readyz`)) ? { api, sandbox, edge } : undefined
}

/** Accepts every certificate, which may be for another name than that of the address; nothing secret is sent. */
function isReady(url: string): Promise<boolean> {
  const options = { rejectUnauthorized: false, signal: AbortSignal.timeout(answerTimeoutMs), agent: false }
  return new Promise((resolve) => {
    const request = url.startsWith('https:') ? getOverTls(url, options) : get(url, options)
    request.once('response', (response) => {
      response.resume()
      resolve(response.statusCode === 200)
    })
    request.once('error', () => resolve(false))
  })
}

/** Without a running tree, a service is down and the time of its exit is unknown. */
async function describe(supervisor: Supervisor, name: string, isSupervised: boolean): Promise<ServiceReport> {
  const state = await supervisor.inspectService(name)
  if (state.is === 'up') return { name, state: 'up', pid: state.pid, since: toRfc3339(state.since) }
  return { name, state: 'down', pid: null, since: state.is === 'down' && isSupervised ? toRfc3339(state.since) : '' }
}
