// HTTP on a Unix socket. A new server replaces the socket by a rename, so clients always reach the latest one.
import { chmodSync, chownSync, renameSync, rmSync } from 'node:fs'
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { dirname } from 'node:path'
import type { LocalSocket } from './driver.ts'

export interface LocalSocketOptions {
  mode: number
  /** The owner; by default the user of this process. */
  uid?: number | undefined
  /** Protects the rest of the platform from clients that open many connections. */
  maxConnections: number
}

const serverOptions = {
  requireHostHeader: false,
  requestTimeout: 30_000,
  headersTimeout: 30_000,
  connectionsCheckingInterval: 1_000,
}
const headerTimeoutMs = 5_000
/** The longest header of version 1 of the PROXY protocol. */
const maxHeaderBytes = 107
const closeTimeoutMs = 2_000

export function listenOnSocket(
  path: string,
  options: LocalSocketOptions,
  answer: RequestListener,
): Promise<LocalSocket> {
  return listenWith(createServer(serverOptions, answer), path, options)
}

/** Listens for connections that another process forwards, each with a PROXY protocol header that names the client. */
export function listenBehindProxy(
  path: string,
  options: LocalSocketOptions,
  answer: (request: IncomingMessage, response: ServerResponse, from: string) => void,
): Promise<LocalSocket> {
  const sources = new WeakMap<Socket, string>()
  const server = createServer(serverOptions, (request, response) =>
    answer(request, response, sources.get(request.socket) ?? ''),
  )
  const [serve] = server.listeners('connection')
  server.removeAllListeners('connection').on('connection', (socket: Socket) =>
    readProxyHeader(socket, (from) => {
      sources.set(socket, from)
      serve!.call(server, socket)
    }),
  )
  return listenWith(server, path, options)
}

/** Reads a header of version 1 of the PROXY protocol and passes on the address of the client. */
function readProxyHeader(socket: Socket, onClient: (address: string) => void): void {
  const timeout = setTimeout(() => socket.destroy(), headerTimeoutMs)
  let read = Buffer.alloc(0)
  const take = (data: Buffer) => {
    read = Buffer.concat([read, data])
    const end = read.indexOf('\r\n')
    if (end < 0 && read.length <= maxHeaderBytes) return
    clearTimeout(timeout)
    socket.off('data', take).pause()
    const from = /^PROXY TCP6 ([0-9A-Fa-f:.]+) /.exec(read.toString('latin1', 0, end))?.[1]
    if (end < 0 || from === undefined) {
      socket.destroy()
      return
    }
    if (read.length > end + 2) socket.unshift(read.subarray(end + 2))
    onClient(from)
    socket.resume()
  }
  socket.on('error', () => undefined).on('close', () => clearTimeout(timeout))
  socket.on('data', take)
}

async function listenWith(
  server: Server,
  path: string,
  { mode, uid, maxConnections }: LocalSocketOptions,
): Promise<LocalSocket> {
  server.maxConnections = maxConnections
  // This name must not be longer than the final one: the kernel limits paths to 107 bytes.
  const fresh = `${dirname(path)}/.${process.pid.toString(36)}`
  rmSync(fresh, { force: true })
  try {
    await listen(server, fresh)
    chmodSync(fresh, mode)
    if (uid !== undefined) chownSync(fresh, uid, uid)
    renameSync(fresh, path)
  } catch (cause) {
    server.close()
    throw new Error(`listen on ${path}`, { cause })
  }
  return { close: () => close(server) }
}

function listen(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    // Later errors are about single connections, which then fail at the client.
    server.on('error', reject)
    server.listen(path, resolve)
  })
}

function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    const cut = setTimeout(() => server.closeAllConnections(), closeTimeoutMs)
    server.close(() => {
      clearTimeout(cut)
      resolve()
    })
  })
}
