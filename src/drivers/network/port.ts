import { connect, createServer } from 'node:net'

/** Whether a server could listen on the port now, on each of these comma-separated addresses. */
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
  // In PostgreSQL and PgBouncer `*` means every address.
  const address = host === '*' ? {} : { host }
  server.listen({ ...address, port, exclusive: true }, () => server.close(() => resolve(true)))
  return promise
}

/**
 * Returns an address at which this host reaches a server that listens on these addresses; of several it takes the
 * first.
 */
export function reachableHost(hosts: string): string {
  const host = hosts.split(',')[0]!.trim()
  // A wildcard includes loopback. PostgreSQL and PgBouncer bind a wildcard only for its own IP version.
  if (host === '*' || host === '0.0.0.0') return '127.0.0.1'
  return host === '::' ? '::1' : host
}

/** Whether a server accepts connections on the port. */
export function isListening(hosts: string, port: number): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>()
  const socket = connect({ host: reachableHost(hosts), port, timeout: 2000 })
  socket.once('connect', () => resolve(true))
  socket.once('error', () => resolve(false))
  socket.once('timeout', () => resolve(false))
  return promise.finally(() => socket.destroy())
}

/**
 * Whether a server does anything with a connection to the port. The kernel accepts connections for a listening socket
 * also while no process serves it. A server that expects TLS closes the connection, which suffices.
 */
export function isAnswering(hosts: string, port: number): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>()
  const socket = connect({ host: reachableHost(hosts), port, timeout: 2000 })
  let isConnected = false
  socket.once('connect', () => {
    isConnected = true
    socket.write('GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n')
  })
  socket.once('data', () => resolve(true))
  socket.once('timeout', () => resolve(false))
  socket.on('error', () => undefined)
  socket.once('close', () => resolve(isConnected))
  return promise.finally(() => socket.destroy())
}
