import { setTimeout as sleep } from 'node:timers/promises'
import type { BoxDriver, Isolation } from '../../drivers/box/driver.ts'
import { requireWriter } from '../../model/account/caller.ts'
import { notFound, unavailable } from '../../model/errors.ts'
import { boxSpec } from '../../model/sandbox/box.ts'
import type { Sandbox, SandboxDetails } from '../../model/sandbox/sandbox.ts'
import { getVisibleSandbox, loadSandbox } from '../../store/sandbox/sandbox.ts'
import { holdSandbox, releaseSandbox, useSandbox } from '../../store/sandbox/sandbox-change.ts'
import { lockState } from '../../store/transition.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { withImage } from './image.ts'

/** Finds a sandbox that the caller may access. It is not started. */
export async function getSandbox(ctx: LiveContext, name: string, access: 'read' | 'write'): Promise<SandboxDetails> {
  const { caller, sandbox } = await getVisibleSandbox(ctx.db, ctx.tokenHash, name)
  if (access === 'write') requireWriter(caller)
  return sandbox
}

/** Finds a sandbox that the caller may access, and starts it if it is cold. */
export async function openSandbox(ctx: LiveContext, name: string, access: 'read' | 'write'): Promise<SandboxDetails> {
  return wake(ctx, await getSandbox(ctx, name, access))
}

/** Starts the sandbox unless it runs. Returns it with the facts that a pull of its image found out. */
export async function wake<T extends Sandbox>(ctx: LiveContext, asked: T): Promise<T> {
  const sandbox = await withImage(ctx, asked)
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

const maxHoldMs = 30_000
const pollMs = 25

/** Waits for the end of a restart or a restore, because starting the box in between would undo the stop. */
async function untilReleased(ctx: LiveContext, id: string): Promise<void> {
  for (const deadline = performance.now() + maxHoldMs; performance.now() < deadline; ) {
    const now = await loadSandbox(ctx.db, id)
    if (now?.state !== 'running' && now?.state !== 'cold') throw notFound('sandbox not found')
    if (!now.isHeld) return
    await sleep(pollMs)
  }
  throw unavailable('the sandbox is being restarted; try again in a moment')
}

/** Ends all processes of the sandbox and starts its services again. A cold sandbox is started. */
export async function restartSandbox(ctx: LiveContext, name: string): Promise<SandboxDetails> {
  const sandbox = await getSandbox(ctx, name, 'write')
  if (sandbox.isHeld) await untilReleased(ctx, sandbox.id)
  // If this process dies after the stop, the background loop starts the sandbox.
  if (sandbox.state === 'running') await stopThenStart(ctx, sandbox)
  else await wake(ctx, sandbox)
  return sandbox
}

async function stopThenStart(ctx: LiveContext, asked: Sandbox): Promise<void> {
  const sandbox = await withImage(ctx, asked)
  await holdSandbox(ctx.db, sandbox.id)
  try {
    await withDeadline(ctx.boxes.stopBox(sandbox.id), 'the sandbox')
    await withDeadline(ctx.boxes.ensureBox(boxSpec(sandbox)), 'the sandbox')
  } finally {
    await releaseSandbox(ctx.db, sandbox.id)
  }
}

/** An upgrade is a restart, because a box uses the current programs of the host when it starts. */
export async function upgradeSandbox(ctx: LiveContext, name: string): Promise<SandboxDetails> {
  const sandbox = await getSandbox(ctx, name, 'write')
  return sandbox.state === 'running' ? restartSandbox(ctx, name) : sandbox
}

export interface Check {
  sandbox: Sandbox
  status: 'healthy' | 'hibernated' | 'unhealthy' | 'error'
  reason?: string
}

/** Does not start the sandbox. */
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
    // That the state cannot be determined is a valid result of a check.
    return { sandbox, status: 'error', reason: (error as Error).message }
  }
}

const isolations = new WeakMap<BoxDriver, Promise<Isolation>>()

/** The isolation of the host, cached because it does not change and determining it starts programs. */
export async function isolationOf({ boxes }: LiveContext): Promise<Isolation> {
  const asked = isolations.get(boxes) ?? boxes.isolation()
  isolations.set(boxes, asked)
  try {
    return await asked
  } catch (error) {
    isolations.delete(boxes)
    throw error
  }
}
