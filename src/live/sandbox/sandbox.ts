import { setTimeout as sleep } from 'node:timers/promises'
import { type BoxDriver, BoxStartError, type Isolation } from '../../drivers/box/driver.ts'
import { requireWriter } from '../../model/account/caller.ts'
import { conflict, notFound } from '../../model/errors.ts'
import { boxSpec } from '../../model/sandbox/box.ts'
import type { Sandbox, SandboxDetails } from '../../model/sandbox/sandbox.ts'
import { listUnfinished } from '../../store/sandbox/checkpoint.ts'
import { getVisibleSandbox, loadSandbox } from '../../store/sandbox/sandbox.ts'
import { holdSandbox, releaseSandbox, setSandboxProblem, useSandbox } from '../../store/sandbox/sandbox-change.ts'
import { inSandboxTurn, type PlacedSandbox } from '../../store/sandbox/turn.ts'
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
  // Requests for a running sandbox take no turn, so that they wait for nothing.
  if (sandbox.state === 'running' && !sandbox.isHeld && (await ctx.boxes.inspectBox(sandbox.id)).is === 'up')
    return sandbox
  if (sandbox.state === 'cold') await markUsed(ctx, sandbox.id)
  await startSandbox(ctx, sandbox.id)
  return sandbox
}

async function markUsed(ctx: LiveContext, id: string): Promise<void> {
  await ctx.db.transaction(async (tx) => {
    const state = await lockState(tx, 'sandbox', id)
    if (state === 'deleting' || state === 'deleted') throw notFound('sandbox not found')
    if (state === 'cold') await useSandbox(tx, id)
  })
}

/** Starts the box, and puts the limits and the policy of the row in force if it runs already. */
export async function startSandbox(ctx: LiveContext, id: string): Promise<void> {
  await inQuietTurn(ctx, id, 'restores', (sandbox) => startBox(ctx, sandbox))
}

/** The box must not be started in the middle of a restore, nor be stopped while its processes are frozen for a copy. */
const quietPollMs = 50
const maxQuietMs = 30_000

/** Runs the task in the turn of the box when no restore is in progress, or no copy of any kind. */
async function inQuietTurn(
  ctx: LiveContext,
  id: string,
  without: 'restores' | 'copies',
  task: (sandbox: PlacedSandbox) => Promise<void>,
): Promise<void> {
  for (const deadline = performance.now() + maxQuietMs; performance.now() < deadline; await sleep(quietPollMs)) {
    const isDone = await inSandboxTurn(ctx, id, async (sandbox) => {
      const alive = requireAlive(sandbox)
      const unfinished = await listUnfinished(ctx.db, id)
      const blocks = unfinished.some((one) => one.state === 'making' && (without === 'copies' || one.restores !== null))
      if (blocks && (without === 'copies' || alive.isHeld)) return false
      await task(alive)
      return true
    })
    if (isDone) return
  }
  throw conflict('a checkpoint or a restore is in progress; try again when it has finished')
}

function requireAlive(sandbox: PlacedSandbox | undefined): PlacedSandbox {
  if (sandbox?.state === 'running' || sandbox?.state === 'cold') return sandbox
  throw notFound('sandbox not found')
}

/** To be called in the turn of the box. */
async function startBox(ctx: LiveContext, sandbox: PlacedSandbox): Promise<void> {
  try {
    await ctx.boxes.ensureBox(boxSpec(sandbox))
  } catch (error) {
    if (!(error instanceof BoxStartError)) throw error
    await setSandboxProblem(ctx.db, sandbox.id, error.message)
    throw conflict(`the sandbox cannot be started: ${error.message}`, { status: 'sandbox_unusable' })
  }
  if (sandbox.problem !== null) await setSandboxProblem(ctx.db, sandbox.id, null)
}

/** Ends all processes of the sandbox and starts its services again. A cold sandbox is started. */
export async function restartSandbox(ctx: LiveContext, name: string): Promise<SandboxDetails> {
  const sandbox = await withImage(ctx, await getSandbox(ctx, name, 'write'))
  if (sandbox.state !== 'running') return wake(ctx, sandbox)
  await inQuietTurn(ctx, sandbox.id, 'copies', async ({ id }) => {
    // Requests for the sandbox wait. If this process dies after the stop, the background loop starts the sandbox.
    await holdSandbox(ctx.db, id)
    try {
      await ctx.boxes.stopBox(id)
      // It may have been deleted or changed meanwhile.
      await startBox(ctx, requireAlive((await loadSandbox(ctx.db, id)) as PlacedSandbox | undefined))
    } finally {
      await releaseSandbox(ctx.db, id)
    }
  })
  return sandbox
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
    const reason = sandbox.problem
      ? `it cannot be started: ${sandbox.problem}`
      : 'it should run and does not; it is about to be started'
    return { sandbox, status: 'unhealthy', reason }
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
