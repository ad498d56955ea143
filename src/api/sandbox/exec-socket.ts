// Connects an exec session to a WebSocket, with the framing of existing clients.
import type { RawData, WebSocket } from 'ws'
import type { LiveContext } from '../../live/context.ts'
import type { ExecSession } from '../../live/sandbox/exec-session.ts'
import { watchPortChanges } from '../../live/sandbox/port.ts'
import {
  type ClientMessage,
  exitFrame,
  exitText,
  frame,
  readClientMessage,
  stdinByte,
  stdinEndByte,
  terminalCloseCode,
} from '../../model/sandbox/exec.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'

export interface Followed {
  ctx: LiveContext
  /** Its ports are reported to the client. Absent for machines. */
  sandbox?: Sandbox
  session: ExecSession
  /** Whether this connection started the session. */
  isOwner: boolean
  /** The start of the command in ticks since boot, for the connection that started it. */
  startedAt?: number
}

export interface Follower {
  message(data: RawData, isBinary: boolean): void
  leave(): void
}

const keepaliveText = JSON.stringify({ type: 'keepalive' })

/** WebSocket close code 1013: try again later. */
const tryAgainLater = 1013

/** Uses the whole socket for one session. */
export function serveSession(socket: WebSocket, followed: Followed): void {
  const { session } = followed
  const follower = follow(socket, followed, (code) => socket.close(session.facts.tty ? terminalCloseCode(code) : 1000))
  socket.on('message', (data, isBinary) => {
    if (isBinary) follower.message(data, isBinary)
    else applyMessage(session, readClientMessage(String(data)))
  })
  socket.once('close', follower.leave)
}

/**
 * Sends the output of a session to a socket. `ended` is called after the last byte has been sent, because a client has
 * limited time to read once its socket is closed.
 */
export function follow(socket: WebSocket, followed: Followed, ended: (code: number) => void): Follower {
  const { ctx, session, isOwner } = followed
  const { tty } = session.facts
  socket.send(sessionInfo(session, isOwner))
  const sent = () => session.balance()
  const keepalive = setInterval(() => socket.send(keepaliveText), ctx.sessions.keepaliveMs)
  const { sandbox, startedAt } = followed
  const unwatch = sandbox ? sendPortChanges(socket, ctx, sandbox, startedAt) : () => undefined
  const finish = () => {
    clearInterval(keepalive)
    unwatch()
  }
  const detach = session.attach({
    backlogBytes: () => socket.bufferedAmount,
    output: (stream, data) => socket.send(tty ? data : frame(stream, data), sent),
    ended(code) {
      finish()
      if (!tty) socket.send(exitText(code))
      socket.send(tty ? exitText(code) : exitFrame(code), () => ended(code))
    },
    drained: () => socket.resume(),
    drop: () => socket.close(tryAgainLater, 'too slow; attach again'),
  })
  const write = (data: Buffer) => {
    // Backpressure: stop reading from the client while the command does not take its input.
    if (!session.input(data)) socket.pause()
  }
  return {
    message: (data) => takeInput(session, bytesOf(data), write),
    leave() {
      finish()
      detach()
    },
  }
}

/** Reading ports costs as much as a short command, so it starts only when a command can have opened one. */
const portWatchDelayMs = 10

function sendPortChanges(
  socket: WebSocket,
  ctx: LiveContext,
  sandbox: Sandbox,
  startedAt: number | undefined,
): () => void {
  let unwatch = () => {}
  const timer = setTimeout(() => {
    unwatch = watchPortChanges(ctx, sandbox, startedAt, (change) => socket.send(JSON.stringify(change)))
  }, portWatchDelayMs)
  return () => {
    clearTimeout(timer)
    unwatch()
  }
}

function takeInput(session: ExecSession, bytes: Buffer, write: (data: Buffer) => void): void {
  if (session.facts.tty) write(bytes)
  else if (bytes[0] === stdinByte) write(bytes.subarray(1))
  else if (bytes[0] === stdinEndByte && bytes.length === 1) session.endInput()
}

export function applyMessage(session: ExecSession, message: ClientMessage | undefined): void {
  if (message?.type === 'resize') session.resize(message.cols, message.rows)
  if (message?.type === 'signal') session.signal(message.signal)
}

function sessionInfo(session: ExecSession, isOwner: boolean): string {
  return JSON.stringify({
    type: 'session_info',
    session_id: session.id,
    command: session.command,
    created: Math.floor(session.facts.createdAt.getTime() / 1000),
    cols: session.cols,
    rows: session.rows,
    is_owner: isOwner,
    tty: session.facts.tty,
  })
}

export function bytesOf(data: RawData): Buffer {
  if (Buffer.isBuffer(data)) return data
  return Array.isArray(data) ? Buffer.concat(data) : Buffer.from(data)
}
