import { connect, createServer } from 'node:net'

/** Whether a server could listen there now. Addresses may be several, separated by commas. */
export async function canBind(hosts: string, port: number): Promise<boolean> {
  for (const host of hosts.split(',').map((entry) => entry.trim())) {
    if (!(await canBindOne(host, port))) return false
  }
  return true
}

function canBindOne(host: string, port: number): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>()
  const server = createServer()
  server.once('error', () => resolve(false))
  // PostgreSQL and the pooler write every address as `*`.
  const address = host === '*' ? {} : { host }
  server.listen({ ...address, port, exclusive: true }, () => server.close(() => resolve(true)))
  return promise
}

/** Where this machine itself reaches who listens there, by the first of several addresses. */
export function localHost(hosts: string): string {
  const host = hosts.split(',')[0]!.trim()
  // Who listens everywhere listens on this machine's own address; PostgreSQL and PgBouncer only on that of the same kind.
  if (host === '*' || host === '0.0.0.0') return '127.0.0.1'
  return host === '::' ? '::1' : host
}

/** Whether somebody listens there. */
export function accepts(hosts: string, port: number): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>()
  const socket = connect({ host: localHost(hosts), port, timeout: 2000 })
  socket.once('connect', () => resolve(true))
  socket.once('error', () => resolve(false))
  socket.once('timeout', () => resolve(false))
  return promise.finally(() => socket.destroy())
}
