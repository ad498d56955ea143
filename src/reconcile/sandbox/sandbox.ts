import { boxSpec } from '../../drivers/box/spec.ts'
import type { Checkpoint } from '../../model/sandbox/checkpoint.ts'
import type { Sandbox, sandboxStates } from '../../model/sandbox/sandbox.ts'
import { nowMicros } from '../../model/time.ts'
import {
  forgetCheckpoints,
  listUnfinished,
  setCheckpointFailed,
  setCheckpointReady,
  setRestored,
} from '../../store/sandbox/checkpoint.ts'
import { holdSandbox, releaseSlot, setUsedBytes } from '../../store/sandbox/sandbox-change.ts'
import { advance, type Steps, type World, wait } from '../step.ts'
import { ensureSandboxImage } from './image.ts'
import { ensureServices } from './service.ts'

/** The supervisor brings a box back by itself; this catches what it could not, such as a box removed by hand. */
const lookAgainSeconds = 30

/** A restart takes about as long. */
const heldLookSeconds = 0.5

/** A copy is waited for in the look itself, for a moment; this is between two of them. */
const copyLookSeconds = 0.05

export const sandboxSteps: Steps<typeof sandboxStates, Sandbox> = {
  async running(known, world) {
    const found = await ensureSandboxImage(known, world)
    if (found.is === 'away') return found.result
    const { sandbox } = found
    const unfinished = await listUnfinished(world.db, sandbox.id)
    const removing = unfinished.filter(({ state }) => state === 'removing')
    if (removing.length > 0) return removeCheckpoints(sandbox, removing, world)
    const making = unfinished.find(({ state }) => state === 'making')
    if (making?.restores) return restore(sandbox, making, making.restores, world)
    if (sandbox.isHeld) return wait(heldLookSeconds, 'being restarted')
    const spec = boxSpec(sandbox)
    await world.boxes.ensureBox(spec)
    if (making) return makeCheckpoint(sandbox, making, world)
    await ensureServices(sandbox, spec, world)
    await world.checkpoints.tidy(spec)
    if (!isMeasureDue(sandbox)) return wait(lookAgainSeconds, 'running')
    const bytes = await world.checkpoints.measureLayers(sandbox.id)
    return wait(lookAgainSeconds, 'running', (tx) => setUsedBytes(tx, sandbox.id, bytes))
  },

  async deleting(sandbox, { db, boxes, checkpoints }) {
    if (sandbox.slot === null) return advance('gone')
    const spec = boxSpec(sandbox)
    // A copy holds the processes still, and processes that are held still do not end.
    for (const { id } of await listUnfinished(db, sandbox.id)) await checkpoints.abandonCopy(spec, id)
    await checkpoints.tidy(spec)
    await boxes.removeBox(spec)
    return advance('gone', '', (tx) => releaseSlot(tx, sandbox.id))
  },
}

/** Counting the files of a large sandbox takes seconds. */
const measureIntervalMicros = 300_000_000n

function isMeasureDue({ measuredAt }: Sandbox): boolean {
  return measuredAt === null || nowMicros() - measuredAt > measureIntervalMicros
}

async function removeCheckpoints(sandbox: Sandbox, removing: Checkpoint[], { checkpoints }: World) {
  for (const { id } of removing) await checkpoints.removeCheckpoint(sandbox.id, id)
  return wait(0, 'removed checkpoints', (tx) => forgetCheckpoints(tx, removing))
}

async function makeCheckpoint(sandbox: Sandbox, making: Checkpoint, { checkpoints }: World) {
  const spec = boxSpec(sandbox)
  const copy = await checkpoints.makeCheckpoint(spec, making.id)
  if (copy.is === 'running') return wait(copyLookSeconds, `making the checkpoint ${making.id}`)
  if (copy.is === 'done') return wait(0, `made the checkpoint ${making.id}`, (tx) => setCheckpointReady(tx, making))
  await checkpoints.abandonCopy(spec, making.id)
  return wait(0, copy.reason, (tx) => setCheckpointFailed(tx, making, copy.reason))
}

/**
 * The copy is made while the box runs, so that it is down for a moment only. What it had becomes the automatic
 * checkpoint by a rename: nothing that was written before the box stopped is lost.
 */
async function restore(sandbox: Sandbox, kept: Checkpoint, from: string, { db, boxes, checkpoints }: World) {
  const spec = boxSpec(sandbox)
  const copy = await checkpoints.prepareRestore(spec, from, kept.id)
  if (copy.is === 'running') return wait(copyLookSeconds, `restoring the checkpoint ${from}`)
  if (copy.is === 'failed') {
    await checkpoints.abandonCopy(spec, kept.id)
    await boxes.ensureBox(spec)
    return wait(0, copy.reason, (tx) => setCheckpointFailed(tx, kept, copy.reason))
  }
  await holdSandbox(db, sandbox.id)
  await boxes.stopBox(sandbox.id)
  await checkpoints.swapLayers(spec, kept.id)
  // A request that came before the hold may have started it again, on what it had.
  await boxes.stopBox(sandbox.id)
  await boxes.ensureBox(spec)
  return wait(0, `restored the checkpoint ${from}`, (tx) => setRestored(tx, kept, from))
}
