// While a program is down, its interface is gone, and the host would send what is meant for its address to the default
// gateway, where anybody may answer. Routes of the whole ranges refuse that at once; those of running boxes are longer.
import { homeAddresses, privateAddresses } from '../../model/network.ts'
import { readTextIfPresent } from '../host/file.ts'
import { commandExists, isRoot, run } from '../host/process.ts'
import type { Numbered } from './private-rules.ts'

export async function ensureUnreachableRoutes(home: Numbered): Promise<void> {
  for (const route of routesOf(home)) await run('ip', changeRoute('replace', route))
}

/** Has no effect on routes that do not exist. */
export async function removeUnreachableRoutes(home: Numbered): Promise<void> {
  if (!isRoot() || !commandExists('ip')) return
  for (const route of routesOf(home)) await run('ip', changeRoute('delete', route)).catch(() => undefined)
}

type Route = [family: '-4' | '-6', range: string]

function routesOf({ number }: Numbered): Route[] {
  const hasIpv6 = readTextIfPresent('/proc/sys/net/ipv6/conf/lo/disable_ipv6')?.trim() === '0'
  const routes: Route[] = [['-4', homeAddresses(number)]]
  return hasIpv6 ? [...routes, ['-6', privateAddresses(number)]] : routes
}

/** Any other route of the same range, such as one that an operator adds, has a better metric. */
function changeRoute(change: 'replace' | 'delete', [family, range]: Route): string[] {
  return [family, 'route', change, 'unreachable', range, 'metric', '4294967294']
}
