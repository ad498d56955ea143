import { existsSync } from 'node:fs'
import { CommandError } from '../cli/errors.ts'
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
  /** A platform that runs in this home uses the address. */
  | { is: 'own' }
  | { is: 'refused'; code: string; why: string; setting: string }

export async function inspectListen(part: Listener, { host, port }: Listen, home: string): Promise<Listening> {
  const binding = await tryBind(host, port)
  if (binding.free) return { is: 'free' }
  const { code } = binding
  if (code === 'EADDRINUSE' && (await isOwn(part, port, home))) return { is: 'own' }
  return { is: 'refused', code, why: reasons[code] ?? `cannot be used: ${code}`, setting: settingOf[part] }
}

const reasons: Record<string, string> = {
  EADDRINUSE: 'is in use by another program',
  EADDRNOTAVAIL: 'is not an address of this machine',
  EACCES: 'needs root: ports below 1024 are privileged',
  ENOTFOUND: 'has a host name that does not resolve',
}

/** Called before anything is started, so that a start that must fail leaves no processes behind. */
export async function refuseTakenListeners(config: Config): Promise<void> {
  const listeners: [Listener, Listen][] = [
    ['api', config.apiListen],
    ['sandbox', config.sandboxListen],
    // The edge of an existing home may still run without the control plane, which checks it later.
    ...(existsSync(`${config.home}/tree`) ? [] : [['edge', config.edgeListen] as [Listener, Listen]]),
  ]
  for (const [part, listen] of listeners) {
    const found = await inspectListen(part, listen, config.home)
    const address = addressText(listen)
    if (found.is === 'own') throw new CommandError(`a platform already runs in ${config.home}, at ${address}`)
    if (found.is === 'refused')
      throw new CommandError(`${address} ${found.why}; set ${found.setting} to another address`)
  }
}

export function addressText({ host, port }: Listen): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`
}

async function isOwn(part: Listener, port: number, home: string): Promise<boolean> {
  return findOwnPort(part, home) === port || (part === 'edge' && (await findEdgePort(home)) === port)
}

/** Compares ports only, because the file has resolved addresses where the setting has a host name or a wildcard. */
function findOwnPort(part: Listener, home: string): number | undefined {
  const text = readTextIfPresent(`${home}/run/addresses.json`)
  const address: string | undefined = text === undefined ? undefined : JSON.parse(text)[part]
  if (address === undefined) return undefined
  const { port, protocol } = new URL(address)
  return port === '' ? { 'http:': 80, 'https:': 443 }[protocol] : Number(port)
}
