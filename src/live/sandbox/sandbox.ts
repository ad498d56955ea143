import { setTimeout as sleep } from 'node:timers/promises'
import type { BoxDriver, Isolation } from '../../drivers/box/driver.ts'
import { boxSpec } from '../../drivers/box/spec.ts'
import { requireWriter } from '../../model/account/caller.ts'
import { notFound, unavailable } from '../../model/errors.ts'
import type { Sandbox, SandboxDetails } from '../../model/sandbox/sandbox.ts'
import { getVisibleSandbox, loadSandbox } from '../../store/sandbox/sandbox.ts'
import { holdSandbox, releaseSandbox, useSandbox } from '../../store/sandbox/sandbox-change.ts'
import { lockState } from '../../store/transition.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { withImage } from './image.ts'

/** The sandbox, if the caller may do this with it. It need not run. */
export async function getSandbox(ctx: LiveContext, name: string, access: 'read' | 'write'): Promise<SandboxDetails> {
  const { caller, sandbox } = await getVisibleSandbox(ctx.db, ctx.tokenHash, name)
  if (access === 'write') requireWriter(caller)
  return sandbox
}

/** The same, and it runs afterwards: whoever uses a cold sandbox starts it. */
export async function openSandbox(ctx: LiveContext, name: string, access: 'read' | 'write'): Promise<SandboxDetails> {
  return wake(ctx, await getSandbox(ctx, name, access))
}

/** It runs afterwards. The answer is what is known of it now. */
export async function wake<T extends Sandbox>(ctx: LiveContext, known: T): Promise<T> {
  const sandbox = await withImage(ctx, known)
  if (sandbox.state === 'cold') {
    await ctx.db.transaction(async (tx) => {
      const state = await lockState(tx, 'sandbox', sandbox.id)
      if (state === 'deleting' || state === 'deleted') throw notFound('sandbox not found')
      if (state !== 'cold') return
      await useSandbox(tx, sandbox.id)
    })
  }
  if (sandbox.isHeld) await untilReleased(ctx, sandbox.id)
  await withDeadline(ctx.boxes.ensureBox(boxSpec(sandbox)), 'the sandbox')
  return sandbox
}

const holdMillis = 30_000
const lookMillis = 25

/** A request that comes during a restart or a restore waits for its end: starting the box now would undo the stop. */
async function untilReleased(ctx: LiveContext, id: string): Promise<void> {
  for (const deadline = performance.now() + holdMillis; performance.now() < deadline; ) {
    const now = await loadSandbox(ctx.db, id)
    if (now?.state !== 'running' && now?.state !== 'cold') throw notFound('sandbox not found')
    if (!now.isHeld) return
    await sleep(lookMillis)
  }
  throw unavailable('the sandbox is being restarted; try again in a moment')
}

/** Everything in it ends and what should run is started again. A cold one starts. */
export async function restartSandbox(ctx: LiveContext, name: string): Promise<SandboxDetails> {
  const sandbox = await getSandbox(ctx, name, 'write')
  if (sandbox.isHeld) await untilReleased(ctx, sandbox.id)
  // Whoever dies in between leaves a sandbox that should run, and the loop starts it.
  if (sandbox.state === 'running') await stopThenStart(ctx, sandbox)
  else await wake(ctx, sandbox)
  return sandbox
}

async function stopThenStart(ctx: LiveContext, known: Sandbox): Promise<void> {
  const sandbox = await withImage(ctx, known)
  await holdSandbox(ctx.db, sandbox.id)
  try {
    await withDeadline(ctx.boxes.stopBox(sandbox.id), 'the sandbox')
    await withDeadline(ctx.boxes.ensureBox(boxSpec(sandbox)), 'the sandbox')
  } finally {
    await releaseSandbox(ctx.db, sandbox.id)
  }
}

/** A box takes up the programs and the base of its host when it starts, so there is nothing more to an upgrade. */
export async function upgradeSandbox(ctx: LiveContext, name: string): Promise<SandboxDetails> {
  const sandbox = await getSandbox(ctx, name, 'write')
  return sandbox.state === 'running' ? restartSandbox(ctx, name) : sandbox
}

export interface Check {
  sandbox: Sandbox
  status: 'healthy' | 'hibernated' | 'unhealthy' | 'error'
  reason?: string
}

/** Looks without waking it. */
export async function checkSandbox(ctx: LiveContext, name: string): Promise<Check> {
  const sandbox = await getSandbox(ctx, name, 'read')
  const problem = sandbox.image?.problem
  if (problem) return { sandbox, status: 'unhealthy', reason: `its image cannot be pulled: ${problem}` }
  if (sandbox.state === 'cold') return { sandbox, status: 'hibernated', reason: 'it has not been used yet' }
  try {
    const box = await withDeadline(ctx.boxes.inspectBox(sandbox.id), 'the sandbox')
    if (box.is === 'up') return { sandbox, status: 'healthy' }
    return { sandbox, status: 'unhealthy', reason: 'it should run and does not; it is about to be started' }
  } catch (error) {
    // Not being able to tell is an answer of this operation.
    return { sandbox, status: 'error', reason: (error as Error).message }
  }
}

const known = new WeakMap<BoxDriver, Promise<Isolation>>()

/** What the machine can do does not change while we run, and finding out starts programs. */
export async function isolationOf({ boxes }: LiveContext): Promise<Isolation> {
  const asked = known.get(boxes) ?? boxes.isolation()
  known.set(boxes, asked)
  try {
    return await asked
  } catch (error) {
    known.delete(boxes)
    throw error
  }
}
