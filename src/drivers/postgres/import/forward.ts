// A program: forwards connections to a Unix socket to one PostgreSQL server elsewhere, whose addresses the platform has
// checked. The clients are in boxes without a network. It also does TLS with the server, because libpq does not through a
// Unix socket, and hides from them what they could use over TLS only. Usage: node forward.ts <settings as JSON>
import { chmodSync, renameSync, rmSync } from 'node:fs'
import { connect, createServer, isIP, type Socket } from 'node:net'
import { connect as connectTls, TLSSocket } from 'node:tls'
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
const fresh = `${settings.socket}.new`
rmSync(fresh, { force: true })
server.listen(fresh, () => {
  // The directory decides who can reach it. It appears under its name when it can be used.
  chmodSync(fresh, 0o666)
  renameSync(fresh, settings.socket)
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
    // What one side has sent before it closed still reaches the other.
    upstream.on('error', () => upstream.destroy()).on('close', () => client.destroySoon())
    client.on('close', () => upstream.destroySoon())
    if (upstream instanceof TLSSocket) relayGreeting(upstream, client)
    else upstream.pipe(client)
    client.pipe(upstream)
  } catch (error) {
    console.error(`connection to ${settings.host}:${settings.port} failed: ${(error as Error).message}`)
    const isRefused = error instanceof TlsFailure
    client.end(errorResponse(isRefused ? '08004' : '08001', isRefused ? error.message : 'the source cannot be reached'))
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
  if (answer === 'N')
    throw new TlsFailure(`the source does not support TLS, which sslmode=${settings.sslMode} requires`)
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

const maxGreetingBytes = 8192
const channelBinding = 'SCRAM-SHA-256-PLUS\0'

/**
 * Over TLS, the server offers a login that is bound to the TLS connection. A client that knows of no TLS takes this for
 * an attack, so the offer is removed from the first message. The client then says that it does not support the binding.
 */
function relayGreeting(upstream: Socket, client: Socket): void {
  let received = Buffer.alloc(0)
  const passOn = (data: Buffer) => {
    upstream.off('data', read)
    client.write(data)
    upstream.pipe(client)
  }
  const read = (data: Buffer) => {
    received = Buffer.concat([received, data])
    const length = received.length < 5 ? Number.POSITIVE_INFINITY : received.readUInt32BE(1) + 1
    if (received.length < length) return received.length > maxGreetingBytes ? passOn(received) : undefined
    const rest = received.subarray(length)
    const message = received.subarray(0, length)
    // The server may negotiate the version of the protocol first.
    if (message[0] !== 'v'.charCodeAt(0)) return passOn(Buffer.concat([withoutBinding(message), rest]))
    client.write(message)
    received = Buffer.alloc(0)
    if (rest.length > 0) read(rest)
  }
  upstream.on('data', read)
}

/** Only of an AuthenticationSASL message, which lists the names of mechanisms. */
function withoutBinding(message: Buffer): Buffer {
  const isSasl = message[0] === 'R'.charCodeAt(0) && message.length > 9 && message.readUInt32BE(5) === 10
  const at = message.indexOf(channelBinding, 9, 'latin1')
  if (!isSasl || at < 0) return message
  const shorter = Buffer.concat([message.subarray(0, at), message.subarray(at + channelBinding.length)])
  shorter.writeUInt32BE(shorter.length - 1, 1)
  return shorter
}

/** A FATAL error of the protocol, which every client shows. */
function errorResponse(code: string, message: string): Buffer {
  const fields = ['SFATAL', 'VFATAL', `C${code}`, `M${message}`].map((field) => `${field}\0`).join('')
  const body = Buffer.from(`${fields}\0`)
  const head = Buffer.alloc(5)
  head.write('E')
  head.writeUInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}
