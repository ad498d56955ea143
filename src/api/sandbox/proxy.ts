import type { Duplex } from 'node:stream'
import type { RawData, WebSocket } from 'ws'
import type { LiveContext } from '../../live/context.ts'
import { dialSandbox } from '../../live/sandbox/proxy.ts'
import { openSandbox } from '../../live/sandbox/sandbox.ts'
import { readObject } from '../../model/sandbox/exec.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import { asBerthError } from '../http/problem.ts'
import type { SocketRoute } from '../http/route.ts'
import { bytesOf } from './exec-socket.ts'

/** The time a client has to send its target; clients wait equally long for the reply. */
const targetTimeoutSeconds = 10
/** The limit on data buffered for a client that does not read. */
const maxUnsentBytes = 1024 * 1024
/** How long data of a disconnected client may take to be delivered. */
const lingerSeconds = 30

const code = { done: 1000, unsupported: 1003, failed: 1011 }

export const proxySockets: SocketRoute[] = [
  {
    path: '/v1/sandboxes/{name}/proxy',
    id: 'proxy',
    tag: 'Ports',
    summary: 'Connect to a port of a sandbox',
    open: async ({ ctx, params }) => {
      const sandbox = await openSandbox(ctx, params.name!, 'write')
      return { run: (socket) => serveProxy(ctx, sandbox, socket) }
    },
  },
]

function serveProxy(ctx: LiveContext, sandbox: Sandbox, socket: WebSocket): void {
  const timer = setTimeout(() => socket.close(code.unsupported, 'no target was received'), targetTimeoutSeconds * 1000)
  socket.once('close', () => clearTimeout(timer))
  socket.once('message', (data, isBinary) => {
    clearTimeout(timer)
    const target = isBinary ? undefined : parseTarget(String(data))
    if (target) void connectTo(ctx, sandbox, socket, target)
    else refuse(socket, code.unsupported, 'the first message must be {"host": "localhost", "port": 1 to 65535}')
  })
}

export interface ProxyTarget {
  host: string
  port: number
}

/** Returns undefined when the message is not valid. */
function parseTarget(text: string): ProxyTarget | undefined {
  const { host = '', port } = readObject(text) ?? {}
  const isPort = typeof port === 'number' && Number.isInteger(port) && port >= 1 && port <= 65_535
  return typeof host === 'string' && isPort ? { host, port } : undefined
}

async function connectTo(ctx: LiveContext, sandbox: Sandbox, socket: WebSocket, target: ProxyTarget): Promise<void> {
  const held = holdMessages(socket)
  try {
    const connection = await dialSandbox(ctx, sandbox, target.host, target.port)
    socket.send(JSON.stringify(connectedTo(target)))
    // Frames that were sent before the close frame are still delivered.
    const joined = joinConnection(socket, connection, (error) => socket.close(error ? code.failed : code.done))
    held.passTo(joined)
    if (socket.readyState === socket.OPEN) socket.once('close', () => joined.leave())
    else joined.leave()
  } catch (error) {
    refuse(socket, code.failed, asBerthError(error).message)
  }
}

export function connectedTo({ host, port }: ProxyTarget): { status: string; target: string } {
  return { status: 'connected', target: `${host || 'localhost'}:${port}` }
}

/** Keeps messages until the connection is established, and stops reading from the client meanwhile. */
function holdMessages(socket: WebSocket): { passTo(joined: Joined): void } {
  const held: [RawData, boolean][] = []
  let joined: Joined | undefined
  socket.on('message', (data, isBinary) => {
    if (joined) return joined.message(data, isBinary)
    held.push([data, isBinary])
    socket.pause()
  })
  return {
    passTo(target) {
      socket.resume()
      for (const [data, isBinary] of held.splice(0)) target.message(data, isBinary)
      joined = target
    },
  }
}

function refuse(socket: WebSocket, reason: number, message: string): void {
  socket.send(JSON.stringify({ status: 'error', error: message }))
  socket.close(reason, message.slice(0, 120))
}

/** The client's end of a connection: takes its messages, and `leave` when it disconnects. */
export interface Joined {
  message(data: RawData, isBinary: boolean): void
  leave(): void
}

/**
 * Forwards bytes in both directions with backpressure. `onEnd` is called once, when the other side has closed and all its
 * data has been passed to the socket.
 */
export function joinConnection(socket: WebSocket, connection: Duplex, onEnd: (error?: Error) => void): Joined {
  let isOver = false
  const finish = (error?: Error) => {
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
  connection.once('end', () => finish())
  connection.once('error', finish)
  connection.once('close', () => finish())
  return {
    message(data, isBinary) {
      if (!isBinary || connection.writableEnded || connection.destroyed) return
      if (!connection.write(bytesOf(data))) socket.pause()
    },
    leave() {
      isOver = true
      closeGracefully(connection)
    },
  }
}

/** Discards incoming data: closing a connection with unread bytes resets it and loses what was sent. */
function closeGracefully(connection: Duplex): void {
  const timer = setTimeout(() => connection.destroy(), lingerSeconds * 1000)
  timer.unref()
  connection.once('close', () => clearTimeout(timer))
  connection.once('end', () => connection.destroy())
  connection.resume()
  connection.end()
}
