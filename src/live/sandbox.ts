import { boxSpec } from '../drivers/box-spec.ts'
import { requireSandboxCaller, requireWriter } from '../model/caller.ts'
import { notFound } from '../model/errors.ts'
import { type Sandbox, type SandboxDetails, sandboxNamePattern, sandboxStates } from '../model/sandbox.ts'
import { findSandbox } from '../store/sandbox.ts'
import { lockState, transition } from '../store/transition.ts'
import { type LiveContext, withDeadline } from './context.ts'

/** The sandbox, if the caller may do this with it. It need not run. */
export async function getSandbox(ctx: LiveContext, name: string, access: 'read' | 'write'): Promise<SandboxDetails> {
  // What cannot be a name, such as a NUL byte, does not reach the database.
  const found = await findSandbox(ctx.db, ctx.tokenHash, sandboxNamePattern.test(name) ? name : '')
  const caller = requireSandboxCaller(found?.caller)
  if (!found?.sandbox) throw notFound('sandbox not found')
  if (access === 'write') requireWriter(caller)
  return found.sandbox
}

/** The same, and it runs afterwards: whoever uses a cold sandbox starts it. */
export async function openSandbox(ctx: LiveContext, name: string, access: 'read' | 'write'): Promise<SandboxDetails> {
  const sandbox = await getSandbox(ctx, name, access)
  await wake(ctx, sandbox)
  return sandbox
}

export async function wake(ctx: LiveContext, sandbox: Sandbox): Promise<void> {
  if (sandbox.state === 'cold') {
    await ctx.db.transaction(async (tx) => {
      const state = await lockState(tx, 'sandbox', sandbox.id)
      if (state === 'deleting' || state === 'deleted') throw notFound('sandbox not found')
      if (state === 'cold') await transition(tx, 'sandbox', sandboxStates, sandbox.id, 'use')
    })
  }
  await withDeadline(ctx.boxes.ensureBox(boxSpec(sandbox)), 'the sandbox')
}
