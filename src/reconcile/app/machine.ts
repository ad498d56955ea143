import type { MachineExit } from '../../drivers/machine/driver.ts'
import type { Machine, machineStates } from '../../model/app/machine.ts'
import { machineNetwork } from '../../model/app/machine-spec.ts'
import { trafficOf } from '../../model/app/network-policy.ts'
import { recordStopped, releaseMachine } from '../../store/app/machine-progress.ts'
import { listPolicies, recordAppliedPolicies } from '../../store/app/network-policy.ts'
import { detachVolumes } from '../../store/app/volume.ts'
import type { Tx } from '../../store/db.ts'
import { advance, type StepResult, type Steps, type World, wait } from '../step.ts'
import { changedContainers } from './machine-container.ts'
import { describeExit, newExits, recordExits, recordReplacedExit } from './machine-exit.ts'
import { ensureImages } from './machine-image.ts'
import { lookAtPorts } from './machine-port.ts'
import { detachUnmounted, startProgram } from './machine-start.ts'
import { stopPreviousVersion, stopProgram } from './machine-stop.ts'

/** The driver reports exits; this is the fallback. */
const pollSeconds = 30

/** The end of a pull or of a slow stop wakes the machine; this is the fallback. */
const longCallSeconds = 5

/** A program that is being started is running by then. */
const policyRetrySeconds = 0.1

const waitingForExit = 'waiting for its program to exit'

export const machineSteps: Steps<typeof machineStates, Machine> = {
  async starting(machine, world) {
    const started = await startProgram(machine, world)
    if (started.is === 'waiting') return wait(started.seconds, started.note)
    if (started.is === 'up') return advance('up', '', started.save)
    return advance(machine.launched ? 'failed' : 'launch failed', started.reason, started.save)
  },

  async started(machine, world) {
    const process = world.machines.inspectMachine(machine.id, machine.instanceId)
    const exits = newExits(machine, process)
    const save = (tx: Tx) => recordExits(tx, machine, exits)
    if (process.is === 'up' || process.is === 'waiting') {
      if (machine.policiesChanged) return applyPolicies(machine, world, save)
      const look = process.is === 'up' ? lookAtPorts(machine, world, process.since) : { retrySeconds: 1 }
      const news = [exits.length > 0 ? save : undefined, look.save, changedContainers(machine, process)]
      return wait(look.retrySeconds ?? pollSeconds, 'running', saveAll(news))
    }
    const last = exits.findLast(({ container }) => container === undefined)
    // Without a recorded exit the program was lost with the host, as in a reboot.
    if (!last) return restartLost(machine, world)
    const note = describeExit(last)
    const saveDown = async (tx: Tx) => {
      await save(tx)
      await recordStopped(tx, machine.id)
    }
    if (machine.config.auto_destroy) return advance('destroy itself', note, saveDown)
    const hasFailed = machine.config.restart?.policy !== 'no' && (last.exitCode !== 0 || last.signal !== 0)
    return hasFailed
      ? advance('gave up', `it was restarted too often: ${note}`, saveDown)
      : advance('exited', note, saveDown)
  },

  async stopping(machine, world) {
    if (!(await stopProgram(machine, world))) return wait(longCallSeconds, waitingForExit)
    return advance(machine.config.auto_destroy ? 'destroy itself' : 'down', '', recordDown(machine, world))
  },

  async restarting(machine, world) {
    const isStopped = hasRestarted(machine, world) || (await stopProgram(machine, world))
    if (!isStopped) return wait(longCallSeconds, waitingForExit)
    const started = await startProgram(machine, world)
    if (started.is === 'waiting') return wait(started.seconds, started.note)
    return started.is === 'up' ? advance('up', '', started.save) : advance('failed', started.reason, started.save)
  },

  async suspending(machine, world) {
    const before = world.machines.inspectMachine(machine.id, machine.instanceId)
    if (before.is === 'up' && (await world.machines.freezeMachine(machine.id))) {
      const process = world.machines.inspectMachine(machine.id, machine.instanceId)
      return process.is === 'up' && process.frozen ? advance('frozen') : wait(0.1, 'freezing its program')
    }
    // Between two restarts there is no program to freeze, and the next one may exit just as fast.
    if (before.is === 'waiting') await world.machines.stopMachine(machine.id, { signal: 'SIGKILL', timeoutMs: 0 })
    if (before.is === 'up' && !(await stopProgram(machine, world))) return wait(longCallSeconds, waitingForExit)
    const reason = before.is === 'up' ? 'this host has no cgroup freezer' : 'its program had exited'
    return advance('exited', reason, recordDown(machine, world))
  },

  /** Pulls the new image while the previous version still runs. */
  async replacing(machine, world) {
    if (machine.wanted) {
      const found = await ensureImages(machine, world)
      if (found.is === 'coming') return wait(longCallSeconds, found.note)
    }
    const previous = await stopPreviousVersion(machine, world)
    if (!previous.stopped) return wait(longCallSeconds, 'waiting for the program of the previous version to exit')
    if (!machine.wanted) return advance('kept', '', (tx) => detachUnmounted(tx, machine))
    const started = await startProgram(machine, world)
    if (started.is === 'waiting') return wait(started.seconds, started.note)
    const save = async (tx: Tx) => {
      if (machine.launched) await recordReplacedExit(tx, machine, previous.exit)
      await started.save?.(tx)
      await detachUnmounted(tx, machine)
    }
    return started.is === 'up' ? advance('up', '', save) : advance('failed', started.reason, save)
  },

  launch_failed: remove,
  destroying: remove,
}

/** Whether an earlier attempt has restarted the program, and was ended before it recorded that. */
function hasRestarted(machine: Machine, world: World): boolean {
  const process = world.machines.inspectMachine(machine.id, machine.instanceId)
  return process.is === 'up' && newExits(machine, process).some(isRequestedEnd)
}

/** The exits of containers precede that of their machine. */
function isRequestedEnd({ container, requested, restarting }: MachineExit): boolean {
  return container === undefined && requested && !restarting
}

type Save = (tx: Tx) => Promise<void>

/** Undefined when there is nothing to save. */
function saveAll(news: (Save | undefined)[]): Save | undefined {
  const saves = news.filter((save) => save !== undefined)
  if (saves.length === 0) return undefined
  return async (tx) => {
    for (const save of saves) await save(tx)
  }
}

/** Reads the exits now, and returns what records them and that the program is down. */
function recordDown(machine: Machine, world: World): (tx: Tx) => Promise<void> {
  const exits = newExits(machine, world.machines.inspectMachine(machine.id, machine.instanceId))
  return async (tx) => {
    await recordExits(tx, machine, exits)
    await recordStopped(tx, machine.id)
  }
}

async function remove(machine: Machine, world: World): Promise<StepResult<'gone'>> {
  if (machine.slot !== null) {
    // A stop in progress would otherwise wait for the program's stop timeout.
    await world.machines.signalMachine(machine.id, 'SIGKILL')
    await world.machines.removeMachine(machine.id, machine.slot)
  }
  return advance('gone', '', async (tx) => {
    await detachVolumes(tx, machine.id)
    await releaseMachine(tx, machine.id)
  })
}

/** Applies the current network policies of the app to the running machine. */
async function applyPolicies(
  machine: Machine,
  world: World,
  save: (tx: Tx) => Promise<void>,
): Promise<StepResult<never>> {
  const { version, policies } = await listPolicies(world.db, machine.appId)
  const network = (await world.hasPrivateNetworks()) ? { network: machineNetwork(machine, world.homeNumber) } : {}
  const policy = trafficOf(policies, machine)
  const isApplied = await world.machines.applyTrafficPolicy({ id: machine.id, policy, ...network })
  if (!isApplied) return wait(policyRetrySeconds, 'applying the network policies of its app')
  return wait(0, 'running', async (tx) => {
    await save(tx)
    await recordAppliedPolicies(tx, machine, version)
  })
}

async function restartLost(machine: Machine, world: World): Promise<StepResult<'failed'>> {
  const started = await startProgram(machine, world)
  if (started.is === 'waiting') return wait(started.seconds, started.note)
  if (started.is === 'refused') return advance('failed', started.reason, started.save)
  return wait(pollSeconds, 'running')
}
