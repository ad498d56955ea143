// Checkpoints are made by the background loop, so that neither a client that disconnects nor a crash of the control plane
// leaves one half-done. A request stores the intention and reports the progress.
import { conflict, notFound } from '../../model/errors.ts'
import { type Checkpoint, checkpointIdPattern, currentCheckpoint } from '../../model/sandbox/checkpoint.ts'
import type { SandboxDetails } from '../../model/sandbox/sandbox.ts'
import type { Tx } from '../../store/db.ts'
import {
  findCheckpoint,
  insertCheckpoint,
  insertRestore,
  listCheckpoints,
  listUnfinished,
  setCheckpointRemoving,
} from '../../store/sandbox/checkpoint.ts'
import { lockState } from '../../store/transition.ts'
import { enqueue } from '../../store/work.ts'
import type { LiveContext } from '../context.ts'
import { openInbox } from './inbox.ts'
import { getSandbox, openSandbox } from './sandbox.ts'

export interface VisibleCheckpoints {
  sandbox: SandboxDetails
  checkpoints: Checkpoint[]
}

export async function listVisibleCheckpoints(ctx: LiveContext, name: string): Promise<VisibleCheckpoints> {
  const sandbox = await getSandbox(ctx, name, 'read')
  return { sandbox, checkpoints: await listCheckpoints(ctx.db, sandbox.id) }
}

export async function createCheckpoint(ctx: LiveContext, name: string, comment: string): Promise<Checkpoint> {
  const sandbox = await openSandbox(ctx, name, 'write')
  return change(ctx, sandbox.id, (tx) => insertCheckpoint(tx, sandbox.id, comment))
}

/** Returns the automatic checkpoint that the present state will be kept as. */
export async function restoreCheckpoint(ctx: LiveContext, name: string, id: string): Promise<Checkpoint> {
  const sandbox = await getSandbox(ctx, name, 'write')
  refuseCurrent(id, 'restored')
  return change(ctx, sandbox.id, async (tx) => {
    await requireReady(tx, sandbox.id, id)
    return insertRestore(tx, sandbox.id, id)
  })
}

export async function deleteCheckpoint(ctx: LiveContext, name: string, id: string): Promise<void> {
  const sandbox = await getSandbox(ctx, name, 'write')
  refuseCurrent(id, 'deleted')
  await change(ctx, sandbox.id, async (tx) => {
    await requireReady(tx, sandbox.id, id)
    const unfinished = await listUnfinished(tx, sandbox.id)
    if (unfinished.some(({ state, restores }) => state === 'making' && restores === id)) {
      throw conflict('the sandbox is being restored from this checkpoint')
    }
    await setCheckpointRemoving(tx, sandbox.id, id)
  })
}

/** Notifications can be lost with the database connection, so the row is also polled. */
const pollMs = 1000

/** Waits until the checkpoint is done or the client has gone. Returns the reason if it failed. */
export async function waitForCheckpoint(
  ctx: LiveContext,
  { sandboxId, id }: Checkpoint,
  gone: AbortSignal,
): Promise<{ failure?: string }> {
  const wants = (change: { what: string; sandboxId: string }) =>
    change.what === 'checkpoint' && change.sandboxId === sandboxId
  const inbox = openInbox(ctx.sandboxFeed, wants, gone)
  try {
    while (!gone.aborted) {
      const seen = await findCheckpoint(ctx.db, sandboxId, id)
      if (!seen) return { failure: 'the sandbox was deleted' }
      if (seen.state === 'failed') return { failure: seen.failure ?? 'it failed' }
      if (seen.state !== 'making') return {}
      await inbox.next(pollMs)
    }
    return {}
  } finally {
    inbox.close()
  }
}

async function change<T>(ctx: LiveContext, sandboxId: string, body: (tx: Tx) => Promise<T>): Promise<T> {
  return ctx.db.transaction(async (tx) => {
    const state = await lockState(tx, 'sandbox', sandboxId)
    if (state !== 'running' && state !== 'cold') throw notFound('sandbox not found')
    const result = await body(tx)
    await enqueue(tx, 'sandbox', sandboxId)
    return result
  })
}

async function requireReady(tx: Tx, sandboxId: string, id: string): Promise<void> {
  const found = checkpointIdPattern.test(id) ? await findCheckpoint(tx, sandboxId, id) : undefined
  if (found?.state !== 'ready') throw notFound('checkpoint not found')
}

function refuseCurrent(id: string, done: string): void {
  if (id === currentCheckpoint || id === 'active') {
    throw conflict(`${id} is the filesystem as it is now and cannot be ${done}`)
  }
}
