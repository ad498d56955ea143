// A program: forwards connections to a Unix socket to one PostgreSQL server elsewhere, whose addresses the platform has
// checked. The clients are in boxes without a network. It also does TLS with the server, because libpq does not through a
// Unix socket; what the clients send and receive it does not read. Usage: node forward.ts <settings as JSON>
import { chmodSync, rmSync } from 'node:fs'
import { connect, createServer, isIP, type Socket } from 'node:net'
import { connect as connectTls } from 'node:tls'
import type { SslMode } from '../../../model/postgres/import.ts'

export interface ForwardSettings {
  socket: string
  addresses: string[]
  port: number
  /** The name in the certificate of the server. */
  host: string
  sslMode: SslMode
  /** Who the program becomes before it connects to anything; null where it is nobody special already. */
  user: { uid: number; gid: number } | null
}

const connectTimeoutMs = 10_000
const maxConnections = 64

// Length 8 and the code of an SSLRequest.
const sslRequest = Buffer.from([0, 0, 0, 8, 4, 210, 22, 47])

/** A failure after the server has answered as PostgreSQL does, so that its reason tells nothing about other programs. */
class TlsFailure extends Error {}

const settings: ForwardSettings = JSON.parse(process.argv[2]!)
const server = createServer((client) => void forward(client))
server.maxConnections = maxConnections
rmSync(settings.socket, { force: true })
server.listen(settings.socket, () => {
  // The directory decides who can reach it.
  chmodSync(settings.socket, 0o666)
  if (settings.user !== null) {
    process.setgroups!([])
    process.setgid!(settings.user.gid)
    process.setuid!(settings.user.uid)
  }
})

async function forward(client: Socket): Promise<void> {
  client.on('error', () => client.destroy())
  client.pause()
  try {
    const upstream = await openUpstream()
    if (client.destroyed) return void upstream.destroy()
    const end = () => {
      client.destroy()
      upstream.destroy()
    }
    for (const socket of [client, upstream]) socket.on('error', end).on('close', end)
    upstream.pipe(client)
    client.pipe(upstream)
  } catch (error) {
    console.error(`connection to ${settings.host}:${settings.port} failed: ${(error as Error).message}`)
    client.end(errorResponse(error instanceof TlsFailure ? error.message : 'the source cannot be reached'))
  }
}

async function openUpstream(): Promise<Socket> {
  let failure: unknown
  for (const address of settings.addresses) {
    const socket = await connectTo(address).catch((error) => {
      failure = error
    })
    if (!socket) continue
    try {
      return settings.sslMode === 'disable' ? socket : await startTls(socket)
    } catch (error) {
      socket.destroy()
      throw error
    }
  }
  throw failure
}

function connectTo(host: string): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>()
  const socket = connect({ host, port: settings.port, noDelay: true, keepAlive: true, keepAliveInitialDelay: 60_000 })
  socket.setTimeout(connectTimeoutMs, () => socket.destroy(new Error('timed out')))
  socket.once('connect', () => resolve(socket)).on('error', reject)
  return promise.finally(() => socket.setTimeout(0))
}

async function startTls(socket: Socket): Promise<Socket> {
  const answer = await askForTls(socket)
  if (answer === 'N' && settings.sslMode === 'prefer') return socket
  if (answer === 'N') throw new TlsFailure(`the source does not support TLS, which sslmode=${settings.sslMode} requires`)
  // Without verification, as in libpq; the name matters for verify-full only.
  const isVerified = settings.sslMode.startsWith('verify')
  const name = isIP(settings.host) === 0 ? { servername: settings.host } : {}
  const checkName = settings.sslMode === 'verify-full' ? {} : { checkServerIdentity: () => undefined }
  const { promise, resolve, reject } = Promise.withResolvers<Socket>()
  const secure = connectTls({ socket, ...name, host: settings.host, rejectUnauthorized: isVerified, ...checkName })
  const timer = setTimeout(() => secure.destroy(new Error('timed out')), connectTimeoutMs)
  secure.once('secureConnect', () => resolve(secure))
  secure.on('error', (error) => reject(new TlsFailure(`TLS with the source failed: ${error.message}`)))
  return promise.finally(() => clearTimeout(timer))
}

/** Anything but the two answers of PostgreSQL is treated like a server that cannot be reached. */
function askForTls(socket: Socket): Promise<'S' | 'N'> {
  const { promise, resolve, reject } = Promise.withResolvers<'S' | 'N'>()
  socket.setTimeout(connectTimeoutMs, () => socket.destroy(new Error('timed out')))
  socket.once('close', () => reject(new Error('closed')))
  socket.once('data', (data) => {
    socket.pause()
    const answer = data.toString('latin1')
    // More than one byte would be plain text that someone injected before the TLS handshake.
    if (answer === 'S' || answer === 'N') resolve(answer)
    else reject(new Error('not a PostgreSQL server'))
  })
  socket.write(sslRequest)
  return promise.finally(() => socket.setTimeout(0))
}

/** A FATAL error of the protocol, which every client shows. */
function errorResponse(message: string): Buffer {
  const fields = ['SFATAL', 'VFATAL', 'C08001', `M${message}`].map((field) => `${field}\0`).join('')
  const body = Buffer.from(`${fields}\0`)
  const head = Buffer.alloc(5)
  head.write('E')
  head.writeUInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}
