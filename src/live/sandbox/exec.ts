import { BerthError, notFound } from '../../model/errors.ts'
import { type ExecRequest, readExecRequest } from '../../model/sandbox/exec.ts'
import type { Sandbox, SandboxDetails } from '../../model/sandbox/sandbox.ts'
import { getOrgLimit } from '../../store/account/quota.ts'
import type { LiveContext } from '../context.ts'
import type { ExecSession } from './exec-session.ts'
import { type ExecPlace, type SessionKind, sandboxPlace } from './exec-sessions.ts'
import { getSandbox, wake } from './sandbox.ts'

const maxSessionsPerBox = 200

/** A command that passed all checks and starts when `start` is called, which throws when others took the last place. */
export interface PreparedExec {
  sandbox: SandboxDetails
  start(kind: SessionKind): ExecSession
}

export async function prepareExec(ctx: LiveContext, name: string, search: URLSearchParams): Promise<PreparedExec> {
  const sandbox = await getSandbox(ctx, name, 'write')
  return prepareExecIn(ctx, sandbox, search)
}

export async function prepareExecIn(
  ctx: LiveContext,
  sandbox: SandboxDetails,
  search: URLSearchParams,
): Promise<PreparedExec> {
  const request = readExecRequest(search)
  const [awake, start] = await Promise.all([wake(ctx, sandbox), prepareStart(ctx, sandbox, request)])
  return { sandbox: awake, start: (kind) => start(sandboxPlace(ctx.boxes, awake, kind)) }
}

/** Refuses when there are too many commands: at once, and again when the command starts, as others may have started since. */
export async function prepareStart(
  ctx: LiveContext,
  { id, orgId }: { id: string; orgId: string },
  request: ExecRequest,
): Promise<(place: ExecPlace) => ExecSession> {
  requireRoom(ctx, id)
  const limit = await getOrgLimit(ctx.db, orgId, 'commands')
  ctx.connections.hold('commands', limit)() // refuses before a connection is upgraded
  return (place) => {
    requireRoom(ctx, id)
    const release = ctx.connections.hold('commands', limit)
    try {
      return ctx.sessions.start(place, request, release)
    } catch (error) {
      release()
      throw error
    }
  }
}

function requireRoom(ctx: LiveContext, boxId: string): void {
  if (ctx.sessions.list(boxId).length < maxSessionsPerBox) return
  throw new BerthError('rate_limited', `at most ${maxSessionsPerBox} commands run at once in a sandbox or machine`, {
    retryAfterSeconds: 1,
    limit: { max: maxSessionsPerBox, windowSeconds: 0 },
  })
}

export async function listExecSessions(ctx: LiveContext, name: string): Promise<ExecSession[]> {
  const sandbox = await getSandbox(ctx, name, 'read')
  return ctx.sessions.list(sandbox.id)
}

export interface FoundSession {
  sandbox: SandboxDetails
  session: ExecSession
}

export async function getExecSession(ctx: LiveContext, name: string, id: string): Promise<FoundSession> {
  const sandbox = await getSandbox(ctx, name, 'write')
  return { sandbox, session: getSessionIn(ctx, sandbox, id) }
}

export function getSessionIn(ctx: LiveContext, sandbox: Sandbox, id: string): ExecSession {
  const session = ctx.sessions.find(sandbox.id, id)
  if (!session) throw notFound(`session not found: ${id}`)
  return session
}

/** Like `getExecSession`, but says of a session that has ended recently that it has exited. */
export async function getSessionToKill(ctx: LiveContext, name: string, id: string): Promise<ExecSession> {
  const sandbox = await getSandbox(ctx, name, 'write')
  if (ctx.sessions.hasEnded(sandbox.id, id)) throw new BerthError('gone', `session has exited: ${id}`)
  return getSessionIn(ctx, sandbox, id)
}
