import { BoxStartError } from '../../drivers/box/driver.ts'
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
import { holdSandbox, releaseSlot, setSandboxProblem, setUsedBytes } from '../../store/sandbox/sandbox-change.ts'
import { type PlacedSandbox, trySandboxTurn } from '../../store/sandbox/turn.ts'
import { advance, type StepResult, type Steps, type World, wait } from '../step.ts'
import { ensureSandboxImage } from './image.ts'
import { ensureServices } from './service.ts'

/** s6 restarts a box by itself; this finds what it cannot repair, such as a box that was removed by hand. */
const checkSeconds = 30

/** While a request changes the box, such as a restart. */
const maxTurnWaitMs = 500
const busySeconds = 0.5

/** Until services that could not be changed are tried again, for example because the disk was full. */
const unsettledSeconds = 2

/** The delay between two steps while a copy runs; each step waits for the copy as well. */
const copyPollSeconds = 0.05

type Waiting = StepResult<never>

export const sandboxSteps: Steps<typeof sandboxStates, Sandbox> = {
  async running(known, world) {
    const found = await ensureSandboxImage(known, world)
    if (found.is === 'away') return found.result
    const turn = await trySandboxTurn(world, known.id, maxTurnWaitMs, (sandbox) => ensureRunning(sandbox, world))
    if (!turn) return wait(busySeconds, 'being changed')
    if ('result' in turn.value) return turn.value.result
    const { sandbox } = turn.value
    const unsettled = await ensureServices(sandbox, world)
    if (unsettled !== undefined) return wait(unsettledSeconds, unsettled)
    if (!isMeasureDue(sandbox)) return wait(checkSeconds, 'running')
    const bytes = await world.checkpoints.measureLayers(sandbox.id)
    return wait(checkSeconds, 'running', (tx) => setUsedBytes(tx, sandbox.id, bytes))
  },

  async deleting({ id }, world) {
    const turn = await trySandboxTurn(world, id, maxTurnWaitMs, async (sandbox) => {
      if (sandbox) await removeAll(sandbox, world)
    })
    if (!turn) return wait(busySeconds, 'being changed')
    return advance('gone', '', (tx) => releaseSlot(tx, id))
  },
}

async function removeAll(sandbox: PlacedSandbox, { db, boxes, checkpoints }: World): Promise<void> {
  const spec = boxSpec(sandbox)
  // A copy freezes the processes of the box, and frozen processes do not end.
  for (const { id } of await listUnfinished(db, sandbox.id)) await checkpoints.abandonCopy(spec, id)
  await checkpoints.tidy(spec)
  await boxes.removeBox(spec)
}

/** Returns the result of the step when there is more to do before the services, or nothing at all. */
async function ensureRunning(
  sandbox: PlacedSandbox | undefined,
  world: World,
): Promise<{ result: Waiting } | { sandbox: PlacedSandbox }> {
  // It was deleted since the step began, and its next step removes it.
  if (sandbox?.state !== 'running') return { result: wait(0, 'being deleted') }
  const unfinished = await listUnfinished(world.db, sandbox.id)
  const removing = unfinished.filter(({ state }) => state === 'removing')
  if (removing.length > 0) return { result: await removeCheckpoints(sandbox, removing, world) }
  const making = unfinished.find(({ state }) => state === 'making')
  if (making?.restores) return { result: await restore(sandbox, making, making.restores, world) }
  const problem = await startBox(sandbox, world)
  if (problem !== undefined && making) return { result: await failCheckpoint(sandbox, making, problem, world) }
  if (problem !== undefined) return { result: wait(checkSeconds, `it cannot be started: ${problem}`) }
  if (making) return { result: await makeCheckpoint(sandbox, making, world) }
  await world.checkpoints.tidy(boxSpec(sandbox))
  return { sandbox }
}

/** Returns why the box does not start, if that is the fault of what it has written. */
async function startBox(sandbox: PlacedSandbox, { db, boxes }: World): Promise<string | undefined> {
  try {
    await boxes.ensureBox(boxSpec(sandbox))
  } catch (error) {
    if (!(error instanceof BoxStartError)) throw error
    await setSandboxProblem(db, sandbox.id, error.message)
    return error.message
  }
  if (sandbox.problem !== null) await setSandboxProblem(db, sandbox.id, null)
  return undefined
}

/** Measuring a large sandbox takes seconds. */
const measureIntervalMicros = 300_000_000n

function isMeasureDue({ measuredAt }: Sandbox): boolean {
  return measuredAt === null || nowMicros() - measuredAt > measureIntervalMicros
}

async function removeCheckpoints(sandbox: Sandbox, removing: Checkpoint[], { checkpoints }: World): Promise<Waiting> {
  for (const { id } of removing) await checkpoints.removeCheckpoint(sandbox.id, id)
  return wait(0, 'removed checkpoints', (tx) => forgetCheckpoints(tx, removing))
}

async function makeCheckpoint(sandbox: Sandbox, making: Checkpoint, world: World): Promise<Waiting> {
  const copy = await world.checkpoints.makeCheckpoint(boxSpec(sandbox), making.id)
  if (copy.is === 'running') return wait(copyPollSeconds, `making the checkpoint ${making.id}`)
  if (copy.is === 'done') return wait(0, `made the checkpoint ${making.id}`, (tx) => setCheckpointReady(tx, making))
  return failCheckpoint(sandbox, making, copy.reason, world)
}

async function failCheckpoint(sandbox: Sandbox, making: Checkpoint, reason: string, world: World): Promise<Waiting> {
  await world.checkpoints.abandonCopy(boxSpec(sandbox), making.id)
  return wait(0, reason, (tx) => setCheckpointFailed(tx, making, reason))
}

/**
 * The checkpoint is copied while the box runs, so that it is down for a moment only. The former layers become the
 * automatic checkpoint by a rename, so nothing that was written before the box stopped is lost.
 */
async function restore(sandbox: PlacedSandbox, kept: Checkpoint, from: string, world: World): Promise<Waiting> {
  const { db, boxes, checkpoints } = world
  const spec = boxSpec(sandbox)
  const copy = await checkpoints.prepareRestore(spec, from, kept.id)
  if (copy.is === 'running') return wait(copyPollSeconds, `restoring the checkpoint ${from}`)
  if (copy.is === 'failed') {
    await checkpoints.abandonCopy(spec, kept.id)
    await startBox(sandbox, world)
    return wait(0, copy.reason, (tx) => setCheckpointFailed(tx, kept, copy.reason))
  }
  // Until the restore is recorded, nobody else starts the box.
  await holdSandbox(db, sandbox.id)
  await boxes.stopBox(sandbox.id)
  await checkpoints.swapLayers(spec, kept.id)
  await startBox(sandbox, world)
  return wait(0, `restored the checkpoint ${from}`, (tx) => setRestored(tx, kept, from))
}
