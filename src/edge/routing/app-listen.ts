import type { AppRoute } from './app.ts'

const webPorts = [80, 443]
/** One app cannot take all ports of a shared address. */
const maxSharedPortsPerApp = 16
const maxSharedPorts = 1_024

/** True for ports other than those of the web. At a shared address only TLS works there, because SNI names the app. */
export function isExtraPort(port: number, edgePort: number): boolean {
  return port !== edgePort && !webPorts.includes(port)
}

/**
 * The sockets to listen on for these apps, as `address port`, sorted. Extra ports of shared addresses come last, so that
 * the limit on sockets drops them first.
 */
export function listAppListens(apps: Iterable<AppRoute>, edgePort: number): string[] {
  const required = new Set<string>()
  const extra = new Set<string>()
  for (const app of apps) {
    const secure = [...app.ports.values()].filter(({ tls, port }) => tls && isExtraPort(port, edgePort))
    for (const address of app.sharedAddresses) {
      for (const port of [edgePort, ...webPorts]) required.add(`${address} ${port}`)
      for (const { port } of secure.slice(0, maxSharedPortsPerApp)) extra.add(`${address} ${port}`)
    }
    for (const address of app.addresses) {
      for (const port of [edgePort, ...app.ports.keys()]) required.add(`${address} ${port}`)
    }
  }
  return [...[...required].sort(), ...[...extra].sort().slice(0, maxSharedPorts)]
}
