// Removes what is left on the host of boxes that no sandbox has. Nothing should be left by a deletion; this finds what an
// earlier version has left, or somebody who worked by hand.
import { listBoxHolders, loadSandbox } from '../../store/sandbox/sandbox.ts'
import { withFreeSlot } from '../../store/sandbox/sandbox-create.ts'
import { trySandboxTurn } from '../../store/sandbox/turn.ts'
import type { World } from '../step.ts'

const intervalMs = 300_000

/** A box that somebody changes has a sandbox, and is looked at again in the next round. */
const maxTurnWaitMs = 5_000

/** Looks at once and then periodically. */
export function startStrayRemoval(world: World, onError: (error: unknown) => void): { stop(): Promise<void> } {
  let running = removeStrays(world, onError)
  let isRunning = false
  const timer = setInterval(() => {
    if (isRunning) return
    isRunning = true
    running = removeStrays(world, onError).finally(() => {
      isRunning = false
    })
  }, intervalMs)
  return {
    async stop() {
      clearInterval(timer)
      await running
    },
  }
}

export async function removeStrays(world: World, onError: (error: unknown) => void): Promise<void> {
  try {
    const found = world.boxes.listBoxes()
    const known = new Set(await listBoxHolders(world.db))
    for (const id of found.filter((one) => !known.has(one))) await removeStray(world, id).catch(onError)
  } catch (error) {
    onError(error)
  }
}

/**
 * The row has a slot before the box is made and until it is removed, so whoever has the turn and finds no slot may end the
 * box. The slot may belong to another one by now. Files are removed only if the sandbox was deleted: when the state database
 * was restored from an older dump, it knows nothing of newer sandboxes.
 */
async function removeStray(world: World, id: string): Promise<void> {
  await trySandboxTurn(world, id, maxTurnWaitMs, async (sandbox) => {
    if (sandbox) return
    const slot = world.boxes.findSlot(id)
    const keepFiles = (await loadSandbox(world.db, id)) === undefined
    await world.boxes.removeStray(id, { keepFiles })
    if (slot !== undefined) await withFreeSlot(world.db, slot, () => world.boxes.removeSlot(slot))
  })
}
