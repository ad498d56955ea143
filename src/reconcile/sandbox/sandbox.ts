import { boxSpec } from '../../model/sandbox/box.ts'
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

/** s6 restarts a box by itself; this finds what it cannot repair, such as a box that was removed by hand. */
const checkSeconds = 30

/** About the duration of a restart. */
const heldPollSeconds = 0.5

/** The delay between two steps while a copy runs; each step waits for the copy as well. */
const copyPollSeconds = 0.05

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
    if (sandbox.isHeld) return wait(heldPollSeconds, 'being restarted')
    const spec = boxSpec(sandbox)
    await world.boxes.ensureBox(spec)
    if (making) return makeCheckpoint(sandbox, making, world)
    await ensureServices(sandbox, spec, world)
    await world.checkpoints.tidy(spec)
    if (!isMeasureDue(sandbox)) return wait(checkSeconds, 'running')
    const bytes = await world.checkpoints.measureLayers(sandbox.id)
    return wait(checkSeconds, 'running', (tx) => setUsedBytes(tx, sandbox.id, bytes))
  },

  async deleting(sandbox, { db, boxes, checkpoints }) {
    if (sandbox.slot === null) return advance('gone')
    const spec = boxSpec(sandbox)
    // A copy freezes the processes of the box, and frozen processes do not end.
    for (const { id } of await listUnfinished(db, sandbox.id)) await checkpoints.abandonCopy(spec, id)
    await checkpoints.tidy(spec)
    await boxes.removeBox(spec)
    return advance('gone', '', (tx) => releaseSlot(tx, sandbox.id))
  },
}

/** Measuring a large sandbox takes seconds. */
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
  if (copy.is === 'running') return wait(copyPollSeconds, `making the checkpoint ${making.id}`)
  if (copy.is === 'done') return wait(0, `made the checkpoint ${making.id}`, (tx) => setCheckpointReady(tx, making))
  await checkpoints.abandonCopy(spec, making.id)
  return wait(0, copy.reason, (tx) => setCheckpointFailed(tx, making, copy.reason))
}

/**
 * The checkpoint is copied while the box runs, so that it is down for a moment only. The former layers become the
 * automatic checkpoint by a rename, so nothing that was written before the box stopped is lost.
 */
async function restore(sandbox: Sandbox, kept: Checkpoint, from: string, { db, boxes, checkpoints }: World) {
  const spec = boxSpec(sandbox)
  const copy = await checkpoints.prepareRestore(spec, from, kept.id)
  if (copy.is === 'running') return wait(copyPollSeconds, `restoring the checkpoint ${from}`)
  if (copy.is === 'failed') {
    await checkpoints.abandonCopy(spec, kept.id)
    await boxes.ensureBox(spec)
    return wait(0, copy.reason, (tx) => setCheckpointFailed(tx, kept, copy.reason))
  }
  await holdSandbox(db, sandbox.id)
  await boxes.stopBox(sandbox.id)
  await checkpoints.swapLayers(spec, kept.id)
  // A request that read the row before the hold may have started the box again, on the former layers.
  await boxes.stopBox(sandbox.id)
  await boxes.ensureBox(spec)
  return wait(0, `restored the checkpoint ${from}`, (tx) => setRestored(tx, kept, from))
}
