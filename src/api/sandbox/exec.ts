import { type Static, Type } from 'typebox'
import { checked } from '../../actions/context.ts'
import {
  getExecSession,
  getSessionToKill,
  killSession,
  listExecSessions,
  prepareExec,
  readKillOrder,
} from '../../live/sandbox/exec.ts'
import type { ExecSession } from '../../live/sandbox/exec-session.ts'
import { ticksNow } from '../../live/sandbox/port.ts'
import { badRequest } from '../../model/errors.ts'
import { ExecSessionList, type ExecSessionView, readFlag } from '../../model/sandbox/exec.ts'
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
import { ByName, readOnly, sandboxAbsent } from './sandbox.ts'

const Session = Type.Object({ ...ByName.properties, session_id: Type.String({ description: 'As the list names it.' }) })

const many = (description: string) =>
  Type.Optional(Type.Union([Type.String(), Type.Array(Type.String())], { description }))

const Command = {
  cmd: many('The command, word by word.'),
  path: Type.Optional(Type.String({ description: 'The program, when it is not the first word.' })),
  dir: Type.Optional(Type.String({ description: 'Where it starts; `/home/sprite` when omitted.' })),
  env: many('A variable as `NAME=value`, over those of the sandbox.'),
  stdin: Type.Optional(Type.String({ description: '`true` to send it input; else it reads the end at once.' })),
}

const sessionAbsent = `${sandboxAbsent} Or: it has no such session.`

export const execRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/sandboxes/{name}/exec',
    id: 'listExecSessions',
    tag: 'Exec',
    summary: 'List the commands that run',
    description:
      'The same path as a WebSocket starts a command: `cmd`, `path`, `dir`, `env`, `stdin`, `tty`, `rows`, `cols`, `max_run_after_disconnect`, or `id` to attach to one that runs.',
    scope: 'read',
    params: ByName,
    status: 200,
    response: ExecSessionList,
    errors: { 404: sandboxAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, search }) => {
      const sessions = await listExecSessions(ctx, params.name)
      if (search.has('cmd') || search.has('cmd[]')) {
        throw badRequest('a command is started with POST, or with an upgrade to a WebSocket')
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
      'The body is its input when `stdin` is `true`. The answer comes in frames of up to 32 KiB, each a chunk of its own that starts with a byte: 1 for standard output, 2 for standard error, and at last 3 with the exit code. A client that hangs up ends the command.',
    scope: 'write',
    params: ByName,
    query: Type.Object(Command),
    rawBody: true,
    streams: true,
    status: 200,
    errors: { 403: readOnly, 404: sandboxAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, search, body }) => {
      await checked(ctx, () => refuseSocketsOnly(search))
      const { start } = await prepareExec(ctx, params.name, search)
      return execAnswer(start(), readFlag(search.get('stdin')) === true, body as unknown as RawBody | undefined)
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/{name}/exec/{session_id}',
    id: 'attachExecSession',
    tag: 'Exec',
    summary: 'Attach to a command that runs',
    description: 'Only as a WebSocket: what it wrote last comes first, then what it writes.',
    scope: 'write',
    params: Session,
    status: 200,
    errors: { 403: readOnly, 404: sessionAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      await getExecSession(ctx, params.name, params.session_id)
      throw badRequest('attach with an upgrade to a WebSocket')
    },
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/{name}/exec/{session_id}/kill',
    id: 'killExecSession',
    tag: 'Exec',
    summary: 'End a command',
    description: 'The answer is a stream of events, one JSON object a line, the last of which is `complete`.',
    scope: 'write',
    params: Session,
    query: Type.Object({
      signal: Type.Optional(Type.String({ description: 'By name or number; `SIGTERM` when omitted.' })),
      timeout: Type.Optional(
        Type.String({
          description: 'After which it gets SIGKILL: `10s` when omitted. `0s` sends the signal and waits for nothing.',
        }),
      ),
    }),
    streams: true,
    status: 200,
    errors: { 403: readOnly, 404: sessionAbsent, 410: 'It has ended already.' },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, search }) => {
      const session = await getSessionToKill(ctx, params.name, params.session_id)
      const order = readKillOrder(search)
      return ndjson((send) => killSession(session, order, send))
    },
  }),
]

/** Clients send signals in the connection when they see it; else each as a request. */
export const socketHeaders = { 'x-sprite-capabilities': 'signal' }

export const execSockets: SocketRoute[] = [
  {
    path: '/v1/sandboxes/{name}/exec',
    id: 'execSocket',
    tag: 'Exec',
    summary: 'Run a command, or attach to one with `id`',
    open: async ({ ctx, params, search }): Promise<OpenSocket> => {
      const id = search.get('id')
      if (id) return attach(ctx, params.name!, id)
      const { sandbox, start } = await prepareExec(ctx, params.name!, search)
      return {
        headers: socketHeaders,
        run: (socket) => serveSession(socket, { ctx, sandbox, startedAt: ticksNow(), session: start(), isOwner: true }),
      }
    },
  },
  {
    path: '/v1/sandboxes/{name}/exec/{session_id}',
    id: 'attachSocket',
    tag: 'Exec',
    summary: 'Attach to a command that runs',
    open: ({ ctx, params }) => attach(ctx, params.name!, params.session_id!),
  },
]

async function attach(ctx: Parameters<typeof getExecSession>[0], name: string, id: string): Promise<OpenSocket> {
  const { sandbox, session } = await getExecSession(ctx, name, id)
  return {
    headers: socketHeaders,
    run: (socket) => serveSession(socket, { ctx, sandbox, session, isOwner: false }),
  }
}

function refuseSocketsOnly(search: URLSearchParams): void {
  const name = ['tty', 'id', 'detachable', 'cc'].find((key) => search.has(key) && readFlag(search.get(key)) !== false)
  if (name) throw badRequest(`${name} needs a WebSocket`)
}

function execAnswer(session: ExecSession, takesInput: boolean, body: RawBody | undefined): StreamAnswer {
  const headers = { 'content-type': 'application/octet-stream', 'cache-control': 'no-cache' }
  if (!takesInput) body?.resume()
  else if (!body) session.endInput()
  return new StreamAnswer(200, headers, (out, gone) => streamSession(out, gone, session, takesInput ? body : undefined))
}

function sessionView(session: ExecSession): Static<typeof ExecSessionView> {
  const { id, command, facts, createdAt, bytesPerSecond, isActive, lastActivityAt } = session
  return {
    id,
    command,
    workdir: facts.workdir,
    created: createdAt.toISOString(),
    tty: facts.tty,
    bytes_per_second: bytesPerSecond,
    is_active: isActive,
    ...(lastActivityAt === undefined ? {} : { last_activity: new Date(lastActivityAt).toISOString() }),
  }
}
