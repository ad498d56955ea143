import { type Static, Type } from 'typebox'
import type { WebSocket } from 'ws'
import { checked } from '../../actions/context.ts'
import { getExecSession, getSessionToKill, listExecSessions, prepareExec } from '../../live/sandbox/exec.ts'
import { killSession, readKillRequest } from '../../live/sandbox/exec-kill.ts'
import type { ExecSession } from '../../live/sandbox/exec-session.ts'
import { ticksNow } from '../../live/sandbox/port.ts'
import { BerthError, badRequest } from '../../model/errors.ts'
import { ExecSessionList, type ExecSessionView, readFlag } from '../../model/sandbox/exec.ts'
import { readOnly } from '../error-text.ts'
import {
  ndjson,
  type OpenSocket,
  type RawBody,
  type Route,
  route,
  type SocketRoute,
  StreamAnswer,
} from '../http/route.ts'
import { serveSession } from './exec-socket.ts'
import { streamSession } from './exec-stream.ts'
import { ByName, sandboxAbsent } from './sandbox.ts'

const Session = Type.Object({
  ...ByName.properties,
  session_id: Type.String({ description: 'The id of the session in the list.' }),
})

const many = (description: string) =>
  Type.Optional(Type.Union([Type.String(), Type.Array(Type.String())], { description }))

const Command = {
  cmd: many('The command and its arguments, one per value.'),
  path: Type.Optional(Type.String({ description: 'The program, if it differs from the first value of `cmd`.' })),
  dir: Type.Optional(Type.String({ description: 'The working directory; `/home/sprite` when omitted.' })),
  env: many('A variable as `NAME=value`; overrides variables of the sandbox.'),
  stdin: Type.Optional(
    Type.String({ description: '`true` to send input; otherwise the command reads end of file immediately.' }),
  ),
}

const killSignal = { description: 'A name or number; `SIGTERM` when omitted.' }
const killTimeout = {
  description: 'The time until SIGKILL; `10s` when omitted. `0s` sends the signal without waiting.',
}

const KillExecSession = Type.Object(
  {
    signal: Type.Optional(Type.Union([Type.String(), Type.Integer()], killSignal)),
    timeout: Type.Optional(
      Type.Union([Type.String(), Type.Number({ minimum: 0 })], {
        description: `${killTimeout.description} A number means seconds. What the body says counts more than the query.`,
      }),
    ),
  },
  { title: 'KillExecSession' },
)

const KillEvent = Type.Object(
  {
    type: Type.Enum(['signal', 'timeout', 'exited', 'killed', 'complete'], {
      description: '`complete` is always the last event.',
    }),
    message: Type.Optional(Type.String({ description: 'Present except with `complete`.' })),
    signal: Type.Optional(Type.String({ description: 'Present with `signal`: the signal that was sent.' })),
    pid: Type.Optional(Type.Integer()),
    exit_code: Type.Optional(
      Type.Integer({ description: 'Present with `complete` when the command has ended; 128 + n after signal n.' }),
    ),
  },
  { title: 'KillEvent', description: 'One line of the response.' },
)

const sessionAbsent = `${sandboxAbsent} Or: it has no such session.`

export const execRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/sandboxes/{name}/exec',
    id: 'listExecSessions',
    tag: 'Exec',
    summary: 'List running commands',
    description:
      'A WebSocket at this path starts a command with the parameters `cmd`, `path`, `dir`, `env`, `stdin`, `tty`, `rows`, `cols` and `max_run_after_disconnect`, or attaches to a running one with `id`.',
    scope: 'read',
    params: ByName,
    status: 200,
    response: ExecSessionList,
    errors: { 404: sandboxAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, search }) => {
      const sessions = await listExecSessions(ctx, params.name)
      if (search.has('cmd') || search.has('cmd[]')) {
        throw badRequest('use POST or a WebSocket to start a command')
      }
      return { count: sessions.length, sessions: sessions.map(sessionView) }
    },
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/exec',
    id: 'exec',
    tag: 'Exec',
    summary: 'Run a command',
    description:
      'The body is the input of the command when `stdin` is `true`. The response consists of frames of up to 32 KiB, each sent as a separate chunk. The first byte of a frame is 1 for standard output, 2 for standard error, and 3 for the last frame with the exit code. The command is ended when the client disconnects.',
    scope: 'write',
    action: 'control',
    params: ByName,
    query: Type.Object(Command),
    rawBody: true,
    streams: true,
    contentType: 'application/octet-stream',
    status: 200,
    errors: { 403: readOnly, 404: sandboxAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, search, body }) => {
      await checked(ctx, () => refuseSocketsOnly(search))
      const { start } = await prepareExec(ctx, params.name, search)
      return execAnswer(start('piped'), readFlag(search.get('stdin')) === true, body as unknown as RawBody | undefined)
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/{name}/exec/{session_id}',
    id: 'attachExecSession',
    tag: 'Exec',
    summary: 'Attach to a running command',
    description: 'Requires a WebSocket, which receives recent output first and then new output.',
    scope: 'write',
    params: Session,
    status: 200,
    errors: { 403: readOnly, 404: sessionAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      await getExecSession(ctx, params.name, params.session_id)
      throw badRequest('use a WebSocket to attach to a command')
    },
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/exec/{session_id}/kill',
    id: 'killExecSession',
    tag: 'Exec',
    summary: 'Stop a command',
    description: 'The response is a stream of events, one JSON object per line; the last one is `complete`.',
    scope: 'write',
    action: 'control',
    params: Session,
    query: Type.Object({
      signal: Type.Optional(Type.String(killSignal)),
      timeout: Type.Optional(Type.String(killTimeout)),
    }),
    body: KillExecSession,
    streams: true,
    contentType: 'application/x-ndjson',
    status: 200,
    response: KillEvent,
    errors: { 403: readOnly, 404: sessionAbsent, 410: 'The command has already ended.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query, body }) => {
      const session = await getSessionToKill(ctx, params.name, params.session_id)
      const order = readKillRequest(query, body)
      return ndjson((send) => killSession(session, order, send))
    },
  }),
]

/** Announces that signals may be sent over the WebSocket; without it clients send each as a request. */
export const socketHeaders = { 'x-sprite-capabilities': 'signal' }

export const execSockets: SocketRoute[] = [
  {
    path: '/v1/sandboxes/{name}/exec',
    id: 'execSocket',
    tag: 'Exec',
    summary: 'Run a command, or attach to a running one with `id`',
    open: async ({ ctx, params, search }): Promise<OpenSocket> => {
      const id = search.get('id')
      if (id) return attach(ctx, params.name!, id)
      const { sandbox, start } = await prepareExec(ctx, params.name!, search)
      return {
        headers: socketHeaders,
        run: (socket) => {
          const startedAt = ticksNow()
          const session = startOrClose(socket, () => start('held'))
          if (session) serveSession(socket, { ctx, sandbox, startedAt, session, isOwner: true })
        },
      }
    },
  },
  {
    path: '/v1/sandboxes/{name}/exec/{session_id}',
    id: 'attachSocket',
    tag: 'Exec',
    summary: 'Attach to a running command',
    open: ({ ctx, params }) => attach(ctx, params.name!, params.session_id!),
  },
]

const tryAgainLater = 1013

/** The connection is upgraded already, so only closing it can tell that the last place was taken meanwhile. */
export function startOrClose<T>(socket: WebSocket, start: () => T): T | undefined {
  try {
    return start()
  } catch (error) {
    if (!(error instanceof BerthError)) throw error
    socket.close(tryAgainLater, error.details.status ?? error.code)
    return undefined
  }
}

async function attach(ctx: Parameters<typeof getExecSession>[0], name: string, id: string): Promise<OpenSocket> {
  const { sandbox, session } = await getExecSession(ctx, name, id)
  return {
    headers: socketHeaders,
    run: (socket) => serveSession(socket, { ctx, sandbox, session, isOwner: false }),
  }
}

function refuseSocketsOnly(search: URLSearchParams): void {
  const name = ['tty', 'id', 'detachable', 'cc'].find((key) => search.has(key) && readFlag(search.get(key)) !== false)
  if (name) throw badRequest(`${name} requires a WebSocket`)
}

function execAnswer(session: ExecSession, takesInput: boolean, body: RawBody | undefined): StreamAnswer {
  const headers = { 'content-type': 'application/octet-stream', 'cache-control': 'no-cache' }
  if (!takesInput) body?.resume()
  else if (!body) session.endInput()
  return new StreamAnswer(200, headers, (out, disconnected) =>
    streamSession(out, disconnected, session, takesInput ? body : undefined),
  )
}

function sessionView(session: ExecSession): Static<typeof ExecSessionView> {
  const { id, command, facts, bytesPerSecond, isActive, lastActivityAt } = session
  return {
    id,
    command,
    workdir: facts.workdir,
    created: facts.createdAt.toISOString(),
    tty: facts.tty,
    bytes_per_second: bytesPerSecond,
    is_active: isActive,
    ...(lastActivityAt === undefined ? {} : { last_activity: new Date(lastActivityAt).toISOString() }),
  }
}
