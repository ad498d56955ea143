import { readExecRequest } from '../../model/sandbox/exec.ts'
import type { LiveContext } from '../context.ts'
import { prepareStart } from '../sandbox/exec.ts'
import type { ExecSession } from '../sandbox/exec-session.ts'
import { getExecTarget } from './machine.ts'

/** Sessions in machines cannot be attached to again, so they end soon after their client is gone. */
const runAfterDisconnectMs = 10_000

/** A command in a machine that may have a terminal. It starts when the returned function is called. */
export async function prepareMachineSession(
  ctx: LiveContext,
  app: string,
  id: string,
  search: URLSearchParams,
): Promise<() => ExecSession> {
  const { machine, orgId, target } = await getExecTarget(ctx, app, id)
  const request = { ...readExecRequest(search), maxRunAfterDisconnectMs: runAfterDisconnectMs }
  const start = await prepareStart(ctx, { id: machine.id, orgId }, request)
  return () =>
    start({
      id: machine.id,
      kind: 'held',
      environment: {},
      workdir: target.workingDir || '/',
      start: (command, held, events) => ctx.machines.startSession(target, command, held, events),
    })
}
