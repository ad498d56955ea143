import type { Duplex } from 'node:stream'
import type { RawData, WebSocket } from 'ws'
import type { LiveContext } from '../live/context.ts'
import { dialSandbox } from '../live/proxy.ts'
import { openSandbox } from '../live/sandbox.ts'
import type { Sandbox } from '../model/sandbox.ts'
import { asBerthError } from './problem.ts'
import type { SocketRoute } from './route.ts'

/** A client has this long to say where to, as it gives us to answer. */
const askSeconds = 10
/** What is on its way to a client that does not read. */
const maxUnsentBytes = 1024 * 1024
/** What a client has sent reaches its end after it has gone, unless the other side takes longer. */
const lingerSeconds = 30

const code = { done: 1000, notUnderstood: 1003, failed: 1011 }

export const proxySockets: SocketRoute[] = [
  {
    path: '/v1/sandboxes/{name}/proxy',
    id: 'proxy',
    tag: 'Ports',
    summary: 'Connect to a port inside',
    open: async ({ ctx, params }) => {
      const sandbox = await openSandbox(ctx, params.name!, 'write')
      return { run: (socket) => serveProxy(ctx, sandbox, socket) }
    },
  },
]

function serveProxy(ctx: LiveContext, sandbox: Sandbox, socket: WebSocket): void {
  const timer = setTimeout(() => socket.close(code.notUnderstood, 'no target was named'), askSeconds * 1000)
  socket.once('close', () => clearTimeout(timer))
  socket.once('message', (data, isBinary) => {
    clearTimeout(timer)
    const target = isBinary ? undefined : parseTarget(String(data))
    if (target) void connectTo(ctx, sandbox, socket, target)
    else refuse(socket, code.notUnderstood, 'the first message must be {"host": "localhost", "port": 1 to 65535}')
  })
}

export interface ProxyTarget {
  host: string
  port: number
}

/** Undefined when it is not understood. */
export function parseTarget(text: string): ProxyTarget | undefined {
  try {
    const { host = '', port } = JSON.parse(text) as { host?: unknown; port?: unknown }
    const isPort = typeof port === 'number' && Number.isInteger(port) && port >= 1 && port <= 65_535
    return typeof host === 'string' && isPort ? { host, port } : undefined
  } catch {
    return undefined
  }
}

async function connectTo(ctx: LiveContext, sandbox: Sandbox, socket: WebSocket, target: ProxyTarget): Promise<void> {
  const early = holdMessages(socket)
  try {
    const connection = await dialSandbox(ctx, sandbox, target.host, target.port)
    socket.send(JSON.stringify({ status: 'connected', target: `${target.host || 'localhost'}:${target.port}` }))
    joinConnection(socket, connection)
    early(connection)
  } catch (error) {
    const { message } = asBerthError(error)
    refuse(socket, code.failed, message)
  }
}

/** What comes before the connection stands is kept for it; no more is read meanwhile. */
function holdMessages(socket: WebSocket): (connection: Duplex) => void {
  const held: Buffer[] = []
  const hold = (data: RawData, isBinary: boolean) => {
    if (isBinary) held.push(bytesOf(data))
    socket.pause()
  }
  socket.on('message', hold)
  return (connection) => {
    socket.off('message', hold)
    for (const data of held) connection.write(data)
    socket.resume()
  }
}

function refuse(socket: WebSocket, reason: number, message: string): void {
  socket.send(JSON.stringify({ status: 'error', error: message }))
  socket.close(reason, message.slice(0, 120))
}

/** Hands bytes on both ways, each no faster than its reader takes them, until one side ends. */
export function joinConnection(socket: WebSocket, connection: Duplex): void {
  socket.on('message', (data, isBinary) => {
    if (!isBinary || connection.writableEnded || connection.destroyed) return
    if (!connection.write(bytesOf(data))) socket.pause()
  })
  connection.on('drain', () => socket.resume())
  connection.on('data', (data: Buffer) => {
    socket.send(data, () => {
      if (socket.bufferedAmount < maxUnsentBytes && connection.isPaused()) connection.resume()
    })
    if (socket.bufferedAmount >= maxUnsentBytes) connection.pause()
  })
  // The frames before the closing one reach the client first.
  connection.once('end', () => socket.close(code.done))
  connection.once('error', () => socket.close(code.failed, 'the connection broke'))
  connection.once('close', () => socket.close(code.done))
  if (socket.readyState === socket.OPEN) socket.once('close', () => letGo(connection))
  else letGo(connection)
}

/** What comes back is read and dropped: closing with unread bytes would take what we sent from the other side. */
function letGo(connection: Duplex): void {
  const timer = setTimeout(() => connection.destroy(), lingerSeconds * 1000)
  timer.unref()
  connection.once('close', () => clearTimeout(timer))
  connection.once('end', () => connection.destroy())
  connection.resume()
  connection.end()
}

function bytesOf(data: RawData): Buffer {
  if (Buffer.isBuffer(data)) return data
  return Array.isArray(data) ? Buffer.concat(data) : Buffer.from(data)
}
