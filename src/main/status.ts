import { existsSync, readFileSync } from 'node:fs'
import { type Home, openHome } from '../drivers/home.ts'
import type { Supervisor } from '../drivers/supervisor.ts'
import { toRfc3339 } from '../model/time.ts'
import type { Config } from './config.ts'
import { openSupervisor } from './foundation.ts'

export interface StatusReport {
  home: string
  tree: 'up' | 'down'
  api: string | null
  sandbox: string | null
  edge: string | null
  answering: boolean
  services: { name: string; state: 'up' | 'down'; pid: number | null; since: string }[]
}

const answerMillis = 2_000

export async function status(config: Config): Promise<StatusReport> {
  if (!existsSync(config.home)) {
    return { home: config.home, tree: 'down', api: null, sandbox: null, edge: null, answering: false, services: [] }
  }
  const home = await openHome(config.home, { uidBase: config.uidBase })
  const supervisor = openSupervisor(home)
  const addresses = readAddresses(home)
  return {
    home: home.path,
    tree: supervisor.inspectTree().is,
    api: addresses.api ?? null,
    sandbox: addresses.sandbox ?? null,
    edge: addresses.edge ?? null,
    answering: await answers(addresses.api),
    services: await Promise.all(supervisor.listServices().map((name) => describe(supervisor, name))),
  }
}

function readAddresses(home: Home): { api?: string; sandbox?: string; edge?: string } {
  return existsSync(home.addressesFile) ? JSON.parse(readFileSync(home.addressesFile, 'utf8')) : {}
}

async function answers(api: string | undefined): Promise<boolean> {
  if (!api) return false
  const reply = await fetch(`${api}/readyz`, { signal: AbortSignal.timeout(answerMillis) }).catch(() => undefined)
  return reply?.ok === true
}

async function describe(supervisor: Supervisor, name: string): Promise<StatusReport['services'][number]> {
  const state = await supervisor.inspectService(name)
  if (state.is === 'up') return { name, state: 'up', pid: state.pid, since: toRfc3339(state.since) }
  return { name, state: 'down', pid: null, since: state.is === 'down' ? toRfc3339(state.since) : '' }
}
