import type { Duplex } from 'node:stream'
import type { RawData, WebSocket } from 'ws'
import type { LiveContext } from '../../live/context.ts'
import { dialSandbox } from '../../live/sandbox/proxy.ts'
import { openSandbox } from '../../live/sandbox/sandbox.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import { asBerthError } from '../http/problem.ts'
import type { SocketRoute } from '../http/route.ts'
import { bytesOf } from './exec-socket.ts'

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
  const held = holdMessages(socket)
  try {
    const connection = await dialSandbox(ctx, sandbox, target.host, target.port)
    socket.send(JSON.stringify(connectedTo(target)))
    // The frames before the closing one reach the client first.
    const joined = joinConnection(socket, connection, (error) => socket.close(error ? code.failed : code.done))
    held.handTo(joined)
    if (socket.readyState === socket.OPEN) socket.once('close', () => joined.leave())
    else joined.leave()
  } catch (error) {
    refuse(socket, code.failed, asBerthError(error).message)
  }
}

export function connectedTo({ host, port }: ProxyTarget): { status: string; target: string } {
  return { status: 'connected', target: `${host || 'localhost'}:${port}` }
}

/** What comes before the connection stands is kept for it; no more is read meanwhile. */
function holdMessages(socket: WebSocket): { handTo(joined: Joined): void } {
  const held: [RawData, boolean][] = []
  let joined: Joined | undefined
  socket.on('message', (data, isBinary) => {
    if (joined) return joined.message(data, isBinary)
    held.push([data, isBinary])
    socket.pause()
  })
  return {
    handTo(taker) {
      socket.resume()
      for (const [data, isBinary] of held.splice(0)) taker.message(data, isBinary)
      joined = taker
    },
  }
}

function refuse(socket: WebSocket, reason: number, message: string): void {
  socket.send(JSON.stringify({ status: 'error', error: message }))
  socket.close(reason, message.slice(0, 120))
}

/** One end of a connection: what a client sends goes in here, and `leave` when it goes. */
export interface Joined {
  message(data: RawData, isBinary: boolean): void
  leave(): void
}

/**
 * Hands bytes on both ways, each no faster than its reader takes them. `onEnd` is called once, when the other side has
 * ended and everything it sent is on its way, in order before what is sent then.
 */
export function joinConnection(socket: WebSocket, connection: Duplex, onEnd: (error?: Error) => void): Joined {
  let isOver = false
  const over = (error?: Error) => {
    if (!isOver) onEnd(error)
    isOver = true
    socket.resume()
  }
  connection.on('drain', () => socket.resume())
  connection.on('data', (data: Buffer) => {
    socket.send(data, () => {
      if (socket.bufferedAmount < maxUnsentBytes && connection.isPaused()) connection.resume()
    })
    if (socket.bufferedAmount >= maxUnsentBytes) connection.pause()
  })
  connection.once('end', () => over())
  connection.once('error', over)
  connection.once('close', () => over())
  return {
    message(data, isBinary) {
      if (!isBinary || connection.writableEnded || connection.destroyed) return
      if (!connection.write(bytesOf(data))) socket.pause()
    },
    leave() {
      isOver = true
      letGo(connection)
    },
  }
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
