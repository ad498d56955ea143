import { setTimeout as sleep } from 'node:timers/promises'
import type { MachineExit } from '../../drivers/machine/driver.ts'
import type { Machine } from '../../model/app/machine.ts'
import { stopOptions } from '../../model/app/machine-spec.ts'
import { nowMicros } from '../../model/time.ts'
import { findVersionBefore } from '../../store/app/machine.ts'
import { runLongCall } from '../long-call.ts'
import type { World } from '../step.ts'
import { wakeMachine } from './machine-image.ts'

/** Most programs stop within this time. */
const stopPatienceMs = 400

/** Covers the notification by which the edge learns of a committed state. */
const edgeDelayMs = 50

/** Stops the machine; false while its program has not exited yet. */
export async function stopProgram(machine: Machine, world: World): Promise<boolean> {
  const image = machine.image ? await world.images.findImage(machine.image.digest) : undefined
  const how = stopOptions(machine, image?.config)
  // The name identifies this stop, so that the result of an earlier one does not count.
  const name = `stop ${machine.id} ${machine.stateSince}`
  const stop = async () => {
    await waitForEdge(machine)
    await world.machines.stopMachine(machine.id, how)
  }
  const call = await runLongCall(world.machines, name, stop, {
    patienceMs: stopPatienceMs,
    onEnd: () => wakeMachine(machine, world),
  })
  return call.is === 'done'
}

/** Waits until the edge no longer sends requests to the machine; they would fail when its program stops. */
async function waitForEdge({ config, stateSince }: Machine): Promise<void> {
  if (!config.services?.length) return
  const sinceMs = Number(nowMicros() - stateSince) / 1000
  if (sinceMs < edgeDelayMs) await sleep(edgeDelayMs - sinceMs)
}

export interface PreviousVersion {
  /** False while its program has not exited yet. */
  stopped: boolean
  /** Its last exit; undefined once the current version has been started. */
  exit?: MachineExit | undefined
}

/** Stops the program of the previous version but not that of the current one. */
export async function stopPreviousVersion(machine: Machine, world: World): Promise<PreviousVersion> {
  const process = world.machines.inspectMachine(machine.id, machine.instanceId)
  if (process.is === 'up' || process.is === 'waiting') return { stopped: true }
  const previous = await findVersionBefore(world.db, machine)
  const stopped = await stopProgram({ ...machine, config: previous?.config ?? machine.config }, world)
  if (!stopped || !previous) return { stopped }
  const last = world.machines.inspectMachine(machine.id, previous.version)
  return { stopped, exit: last.is === 'absent' ? undefined : last.exits.at(-1) }
}
