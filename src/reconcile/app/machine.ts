import { setTimeout as sleep } from 'node:timers/promises'
import type { Image } from '../../drivers/image/driver.ts'
import {
  type MachineExit,
  type MachineProcess,
  type MachineSpec,
  MachineStartError,
} from '../../drivers/machine/driver.ts'
import { machineSpec, networkOf, SpecError, stopNow } from '../../drivers/machine/spec.ts'
import type { ExitEvent, Machine, machineStates } from '../../model/app/machine.ts'
import { checkNames } from '../../model/app/machine-check-list.ts'
import { trafficOf } from '../../model/app/network-policy.ts'
import { nowMicros } from '../../model/time.ts'
import { findVersionBefore, readSurroundings } from '../../store/app/machine.ts'
import {
  destroyMachine,
  machinesToRemove,
  noteDown,
  noteExits,
  noteUp,
  releaseMachine,
} from '../../store/app/machine-change.ts'
import { insertMachineEvent } from '../../store/app/machine-event.ts'
import { listPolicies, noteHeld } from '../../store/app/network-policy.ts'
import { detachVolumes, volumesOfMachine } from '../../store/app/volume.ts'
import type { Query, Tx } from '../../store/db.ts'
import { advance, type StepResult, type Steps, type World, wait } from '../step.ts'
import { underway } from '../underway.ts'
import { ensureImage, wake } from './machine-image.ts'

/** What ends by itself is told by the driver; this catches what was not heard. */
const lookAgainSeconds = 30

/** An image or a program that takes its time wakes the step when it is done; this is for when that is lost. */
const longCallSeconds = 5

/** Nobody tells a machine that its volume has been made, which mostly takes a moment. */
const volumeSeconds = 0.3

/** A program that is just being started is up by then. */
const soonSeconds = 0.1

/** A prompt program has ended by then. */
const stopPatienceMs = 400

export const machineSteps: Steps<typeof machineStates, Machine> = {
  async starting(machine, world) {
    const started = await start(machine, world)
    if (started.is === 'waiting') return wait(started.seconds, started.note)
    if (started.is === 'up') return advance('up', '', started.save)
    return advance(machine.launched ? 'failed' : 'launch failed', started.reason, started.save)
  },

  async started(machine, world) {
    const seen = world.machines.inspectMachine(machine.id, machine.instanceId)
    const exits = freshExits(machine, seen)
    const save = (tx: Tx) => noteEnds(tx, machine, exits)
    if (seen.is === 'up' || seen.is === 'waiting') {
      if (machine.policiesChanged) return hold(machine, world, save)
      return wait(seen.is === 'up' ? lookAgainSeconds : 1, 'running', exits.length > 0 ? save : undefined)
    }
    const last = exits.at(-1)
    // Gone without an end of its own, as after a reboot.
    if (!last) return bringBack(machine, world)
    const note = endOf(last)
    const over = async (tx: Tx) => {
      await save(tx)
      await noteDown(tx, machine.id)
    }
    if (machine.config.auto_destroy) return advance('destroy itself', note, over)
    const isGivenUp = machine.config.restart?.policy !== 'no' && (last.exitCode !== 0 || last.signal !== 0)
    return isGivenUp
      ? advance('gave up', `it was started again and again: ${note}`, over)
      : advance('exited', note, over)
  },

  async stopping(machine, world) {
    const stopped = await stop(machine, world)
    if (!stopped) return wait(longCallSeconds, 'waiting for its program to end')
    const exits = freshExits(machine, world.machines.inspectMachine(machine.id, machine.instanceId))
    return advance('down', '', async (tx) => {
      await noteEnds(tx, machine, exits)
      await noteDown(tx, machine.id)
    })
  },

  async restarting(machine, world) {
    const stopped = await stop(machine, world)
    if (!stopped) return wait(longCallSeconds, 'waiting for its program to end')
    const started = await start(machine, world)
    if (started.is === 'waiting') return wait(started.seconds, started.note)
    return started.is === 'up' ? advance('up', '', started.save) : advance('failed', started.reason, started.save)
  },

  async suspending(machine, world) {
    const before = world.machines.inspectMachine(machine.id, machine.instanceId)
    if (before.is === 'up' && (await world.machines.freezeMachine(machine.id))) {
      const seen = world.machines.inspectMachine(machine.id, machine.instanceId)
      return seen.is === 'up' && seen.frozen ? advance('frozen') : wait(0.1, 'holding its program still')
    }
    // Between two lives there is nothing to hold still, and the next one may be as short as the last.
    if (before.is === 'waiting') await world.machines.stopMachine(machine.id, { signal: 'SIGKILL', timeoutMs: 0 })
    if (before.is === 'up' && !(await stop(machine, world)))
      return wait(longCallSeconds, 'waiting for its program to end')
    const exits = freshExits(machine, world.machines.inspectMachine(machine.id, machine.instanceId))
    const why = before.is === 'up' ? 'there is nothing here to hold its program still with' : 'its program had ended'
    return advance('exited', why, async (tx) => {
      await noteEnds(tx, machine, exits)
      await noteDown(tx, machine.id)
    })
  },

  /** The new image comes while the old version still runs. */
  async replacing(machine, world) {
    if (machine.wanted) {
      const found = await ensureImage(machine, world)
      if (found.is === 'coming') return wait(longCallSeconds, found.note)
    }
    if (!(await stopReplaced(machine, world)))
      return wait(longCallSeconds, 'waiting for the program of the version before to end')
    if (!machine.wanted) return advance('kept', '', (tx) => keepOnly(tx, machine))
    const started = await start(machine, world)
    if (started.is === 'waiting') return wait(started.seconds, started.note)
    const save = async (tx: Tx) => {
      await started.save?.(tx)
      await keepOnly(tx, machine)
    }
    return started.is === 'up' ? advance('up', '', save) : advance('failed', started.reason, save)
  },

  launch_failed: remove,
  destroying: remove,
}

async function remove(machine: Machine, world: World): Promise<StepResult<'gone'>> {
  if (machine.slot !== null) {
    // A stop that is under way would let its program take its time.
    await world.machines.signalMachine(machine.id, 'SIGKILL')
    await world.machines.removeMachine(machine.id, machine.slot)
  }
  return advance('gone', '', async (tx) => {
    await detachVolumes(tx, machine.id)
    await releaseMachine(tx, machine.id)
  })
}

type Start =
  | { is: 'waiting'; note: string; seconds: number }
  | { is: 'up'; save: (tx: Tx) => Promise<void> }
  | { is: 'refused'; reason: string; save?: (tx: Tx) => Promise<void> }

/** Codes with which the program of a box could not be run at all. */
const notRunnable: Record<number, string> = {
  126: 'cannot be run',
  127: 'was not found in the image, or something that it needs',
}

async function start(machine: Machine, world: World): Promise<Start> {
  const before = world.machines.inspectMachine(machine.id, machine.instanceId)
  if (before.is !== 'up' || before.frozen) {
    const refused = await startProgram(machine, world)
    if (refused) return refused
  }
  const seen = world.machines.inspectMachine(machine.id, machine.instanceId)
  const last = freshExits(machine, seen).at(-1)
  const why = last && seen.is !== 'up' && last.signal === 0 ? notRunnable[last.exitCode] : undefined
  if (why === undefined) {
    // What ended before this start is told before it; what ended since is for the next look.
    const save = async (tx: Tx) => {
      await noteEnds(tx, machine, freshExits(machine, before))
      await noteUp(tx, machine.id, checkNames(machine.config))
    }
    return { is: 'up', save }
  }
  await world.machines.stopMachine(machine.id, { signal: 'SIGKILL', timeoutMs: 0 })
  const exits = freshExits(machine, world.machines.inspectMachine(machine.id, machine.instanceId))
  return {
    is: 'refused',
    reason: `its program ${why} (exit code ${last!.exitCode})`,
    save: (tx) => noteEnds(tx, machine, exits),
  }
}

/** Undefined when it has been started. */
async function startProgram(machine: Machine, world: World): Promise<Exclude<Start, { is: 'up' }> | undefined> {
  const found = await ensureImage(machine, world)
  if (found.is === 'coming') return { is: 'waiting', note: found.note, seconds: longCallSeconds }
  if (found.is === 'refused') return found
  const volumes = await volumesOfMachine(world.db, machine.id)
  const failed = volumes.find(({ failure }) => failure !== null)
  if (failed) return { is: 'refused', reason: `its volume ${failed.id} could not be made: ${failed.failure}` }
  const making = volumes.find(({ state }) => state === 'creating')
  if (making) return { is: 'waiting', note: `waiting for its volume ${making.id}`, seconds: volumeSeconds }
  // One that is to grow has its size from the start.
  for (const { id, sizeGb } of volumes) await world.volumes.extendVolume(id, sizeGb)
  try {
    await world.machines.startMachine(await specOf(found.machine, found.image, world))
    return undefined
  } catch (error) {
    if (error instanceof SpecError || error instanceof MachineStartError)
      return { is: 'refused', reason: error.message }
    throw error
  }
}

async function specOf(machine: Machine, image: Image, world: World): Promise<MachineSpec> {
  const [around, { policies }] = await Promise.all([
    readSurroundings(world.db, machine.id, world.encryptionKey),
    listPolicies(world.db, machine.appId),
  ])
  const hasPrivateNetworks = await world.hasPrivateNetworks()
  const spec = machineSpec(machine, image, { ...around, homeNumber: world.homeNumber, hasPrivateNetworks })
  return { ...spec, policy: trafficOf(policies, machine) }
}

/** Has what runs follow the policies of its app as they are now. */
async function hold(machine: Machine, world: World, save: (tx: Tx) => Promise<void>): Promise<StepResult<never>> {
  const { version, policies } = await listPolicies(world.db, machine.appId)
  const network = (await world.hasPrivateNetworks()) ? { network: networkOf(machine, world.homeNumber) } : {}
  const policy = trafficOf(policies, machine)
  const isHeld = await world.machines.holdMachine({ id: machine.id, policy, ...network })
  if (!isHeld) return wait(soonSeconds, 'holding it to the network policies of its app')
  return wait(0, 'running', async (tx) => {
    await save(tx)
    await noteHeld(tx, machine, version)
  })
}

/** It was to run and is not there. */
async function bringBack(machine: Machine, world: World): Promise<StepResult<'failed'>> {
  const started = await start(machine, world)
  if (started.is === 'waiting') return wait(started.seconds, started.note)
  if (started.is === 'refused') return advance('failed', started.reason, started.save)
  return wait(lookAgainSeconds, 'running')
}

/** False while its program still takes its time. */
async function stop(machine: Machine, world: World): Promise<boolean> {
  const image = machine.image ? await world.images.findImage(machine.image.digest) : undefined
  const how = stopNow(machine, image?.config)
  // The name says which stop it is, so that the result of an earlier one does not count.
  const name = `stop ${machine.id} ${machine.stateSince}`
  const end = async () => {
    await edgeHasHeard(machine)
    await world.machines.stopMachine(machine.id, how)
  }
  const call = await underway(world.machines, name, end, {
    patienceMs: stopPatienceMs,
    onEnd: () => wake(machine, world),
  })
  return call.is === 'done'
}

/** The edge is told of the state as it is committed; this is for the telling. */
const hearingMs = 50

/** Requests that are sent to a program which is just being ended would fail. */
async function edgeHasHeard({ config, stateSince }: Machine): Promise<void> {
  if (!config.services?.length) return
  const sinceMs = Number(nowMicros() - stateSince) / 1000
  if (sinceMs < hearingMs) await sleep(hearingMs - sinceMs)
}

/** True once nothing of the version before runs. What runs of this one stays. */
async function stopReplaced(machine: Machine, world: World): Promise<boolean> {
  const seen = world.machines.inspectMachine(machine.id, machine.instanceId)
  if (seen.is === 'up' || seen.is === 'waiting') return true
  const before = await findVersionBefore(world.db, machine)
  return stop({ ...machine, config: before?.config ?? machine.config }, world)
}

/** What only the version before had mounted is free for others. */
async function keepOnly(tx: Tx, machine: Machine): Promise<void> {
  const kept = (machine.config.mounts ?? []).map(({ volume }) => volume!)
  await detachVolumes(tx, machine.id, kept)
}

function freshExits(machine: Machine, seen: MachineProcess): MachineExit[] {
  return seen.is === 'absent' ? [] : seen.exits.filter(({ number }) => number > machine.exitsSeen)
}

/** Ends become events, each once. */
async function noteEnds(tx: Tx, machine: Machine, exits: MachineExit[]): Promise<void> {
  const last = exits.at(-1)
  if (!last) return
  let restarts = machine.restartCount
  for (const exit of exits) {
    if (exit.restarting) restarts++
    const request = { exit_event: exitEvent(exit), restart_count: restarts }
    await insertMachineEvent(tx, machine.id, { type: 'exit', status: 'stopped', source: 'flyd', request })
    if (!exit.restarting) continue
    const again = { restart_count: restarts }
    await insertMachineEvent(tx, machine.id, { type: 'restart', status: 'starting', source: 'flyd', request: again })
  }
  await noteExits(tx, machine.id, last.number, restarts - machine.restartCount)
}

function exitEvent(exit: MachineExit): ExitEvent {
  return {
    exit_code: exit.exitCode,
    guest_exit_code: exit.signal === 0 ? exit.exitCode : 0,
    guest_signal: exit.signal === 0 ? -1 : exit.signal,
    guest_error: '',
    oom_killed: exit.oomKilled,
    requested_stop: exit.requested,
    restarting: exit.restarting,
    signal: exit.signal === 0 ? -1 : exit.signal,
    error: '',
    exited_at: new Date(exit.at).toISOString(),
  }
}

function endOf({ exitCode, signal, oomKilled }: MachineExit): string {
  if (oomKilled) return 'its program was ended for want of memory'
  return signal === 0 ? `its program ended with code ${exitCode}` : `its program was ended by signal ${signal}`
}

/** Short transactions, so that a large app never holds others up. */
const removalBatch = 100

/** Tells machines of an app to go, in the transaction that records the step. Undefined when all know. */
export async function dismissMachines(db: Query, appId: string): Promise<((tx: Tx) => Promise<void>) | undefined> {
  const machines = await machinesToRemove(db, appId, removalBatch)
  if (machines.length === 0) return undefined
  return async (tx) => {
    for (const id of machines) await destroyMachine(tx, id, 'flyd')
  }
}
