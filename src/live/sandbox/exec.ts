import { BerthError, notFound } from '../../model/errors.ts'
import { readExecRequest } from '../../model/sandbox/exec.ts'
import type { Sandbox, SandboxDetails } from '../../model/sandbox/sandbox.ts'
import type { LiveContext } from '../context.ts'
import { loadTerminals } from '../terminal.ts'
import type { ExecSession } from './exec-session.ts'
import { getSandbox, wake } from './sandbox.ts'

const maxSessionsPerSandbox = 200

/** A command that passed all checks and starts when `start` is called. */
export interface PreparedExec {
  sandbox: SandboxDetails
  start(): ExecSession
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
  if (ctx.sessions.list(sandbox.id).length >= maxSessionsPerSandbox) {
    throw new BerthError('rate_limited', `a sandbox runs at most ${maxSessionsPerSandbox} commands at once`, {
      retryAfterSeconds: 1,
      limit: { max: maxSessionsPerSandbox, windowSeconds: 0 },
    })
  }
  if (request.tty) await loadTerminals()
  const awake = await wake(ctx, sandbox)
  return { sandbox: awake, start: () => ctx.sessions.start(ctx.boxes, awake, request) }
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
