import { existsSync } from 'node:fs'
import { Failure } from '../cli/failure.ts'
import { tryBind } from '../drivers/host/facts.ts'
import { readTextIfPresent } from '../drivers/host/file.ts'
import type { Config, Listen } from './config.ts'
import { findEdgePort } from './edge/service.ts'

export type Listener = 'api' | 'sandbox' | 'edge'

const settingOf: Record<Listener, string> = {
  api: 'BERTH_API_LISTEN',
  sandbox: 'BERTH_SANDBOX_LISTEN',
  edge: 'BERTH_EDGE_LISTEN',
}

export type Listening =
  | { is: 'free' }
  /** By a platform that runs in this home. */
  | { is: 'own' }
  | { is: 'refused'; code: string; why: string; setting: string }

export async function inspectListen(part: Listener, { host, port }: Listen, home: string): Promise<Listening> {
  const binding = await tryBind(host, port)
  if (binding.free) return { is: 'free' }
  const { code } = binding
  if (code === 'EADDRINUSE' && (await isOwn(part, port, home))) return { is: 'own' }
  return { is: 'refused', code, why: reasons[code] ?? `cannot be listened on: ${code}`, setting: settingOf[part] }
}

const reasons: Record<string, string> = {
  EADDRINUSE: 'is in use by another program',
  EADDRNOTAVAIL: 'is not an address of this machine',
  EACCES: 'needs more rights: ports below 1024 are for root',
  ENOTFOUND: 'has a name that does not resolve',
}

/** Before anything is started, so that a platform that cannot be reached leaves nothing behind that runs. */
export async function refuseTakenListeners(config: Config): Promise<void> {
  const listeners: [Listener, Listen][] = [
    ['api', config.apiListen],
    ['sandbox', config.sandboxListen],
    // The edge of a home runs on without its platform, and is looked at when that is there.
    ...(existsSync(`${config.home}/tree`) ? [] : [['edge', config.edgeListen] as [Listener, Listen]]),
  ]
  for (const [part, listen] of listeners) {
    const found = await inspectListen(part, listen, config.home)
    const address = addressText(listen)
    if (found.is === 'own') throw new Failure(`a platform runs in ${config.home} already, at ${address}`)
    if (found.is === 'refused') throw new Failure(`${address} ${found.why}; set ${found.setting} to another address`)
  }
}

export function addressText({ host, port }: Listen): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`
}

async function isOwn(part: Listener, port: number, home: string): Promise<boolean> {
  return findOwnPort(part, home) === port || (part === 'edge' && (await findEdgePort(home)) === port)
}

/** By the port alone: a name or a wildcard stands in the file as the address that it became. */
function findOwnPort(part: Listener, home: string): number | undefined {
  const text = readTextIfPresent(`${home}/run/addresses.json`)
  const address: string | undefined = text === undefined ? undefined : JSON.parse(text)[part]
  if (address === undefined) return undefined
  const { port, protocol } = new URL(address)
  return port === '' ? { 'http:': 80, 'https:': 443 }[protocol] : Number(port)
}
