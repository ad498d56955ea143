import type { WebSocket } from 'ws'
import type { LiveContext } from '../../live/context.ts'
import { type FileEvent, type WatchCommand, watchFiles } from '../../live/sandbox/file-watch.ts'
import { openSandbox } from '../../live/sandbox/sandbox.ts'
import { readObject } from '../../model/sandbox/exec.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import { asBerthError } from '../http/problem.ts'
import type { SocketRoute } from '../http/route.ts'

const subscribeSeconds = 30
const maxUnsentBytes = 1024 * 1024
const code = { refused: 1008, failed: 1011 }

export const fileSockets: SocketRoute[] = [
  {
    path: '/v1/sandboxes/{name}/fs/watch',
    id: 'watchFiles',
    tag: 'Files',
    summary: 'Watch files',
    action: 'read',
    open: async ({ ctx, params }) => {
      const sandbox = await openSandbox(ctx, params.name!, 'read')
      return { run: (socket) => serveWatch(ctx, sandbox, socket) }
    },
  },
]

function serveWatch(ctx: LiveContext, sandbox: Sandbox, socket: WebSocket): void {
  const stopped = new AbortController()
  socket.once('close', () => stopped.abort())
  const timer = setTimeout(() => socket.close(code.refused, 'no subscription was received'), subscribeSeconds * 1000)
  stopped.signal.addEventListener('abort', () => clearTimeout(timer))
  socket.once('message', (data) => {
    clearTimeout(timer)
    const command = parseSubscription(String(data))
    if (command) void watch(ctx, sandbox, socket, command, stopped.signal)
    else refuse(socket, code.refused, 'the first message must be {"type": "subscribe", "paths": ["…"]}')
  })
}

async function watch(
  ctx: LiveContext,
  sandbox: Sandbox,
  socket: WebSocket,
  command: WatchCommand,
  stopped: AbortSignal,
): Promise<void> {
  try {
    await watchFiles(ctx, sandbox, command, (event) => sendEvent(socket, event), stopped)
  } catch (error) {
    const { statusCode, message } = asBerthError(error)
    refuse(socket, statusCode < 500 ? code.refused : code.failed, message)
  }
}

/** Resolves when the send buffer has room for the next event. */
function sendEvent(socket: WebSocket, event: FileEvent): Promise<void> {
  return new Promise((resolve) => {
    socket.send(JSON.stringify(event), () => resolve())
    if (socket.bufferedAmount < maxUnsentBytes) resolve()
  })
}

function refuse(socket: WebSocket, reason: number, message: string): void {
  socket.send(JSON.stringify({ type: 'error', message }))
  socket.close(reason, message.slice(0, 120))
}

/** Returns undefined when the message is not valid. */
function parseSubscription(text: string): WatchCommand | undefined {
  const { type, paths, recursive, workingDir } = readObject(text) ?? {}
  const isList = Array.isArray(paths) && paths.every((path) => typeof path === 'string')
  if (type !== 'subscribe' || !isList) return undefined
  return { paths, recursive: recursive === true, ...(typeof workingDir === 'string' ? { workingDir } : {}) }
}
