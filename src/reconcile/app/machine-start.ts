import { MachineStartError } from '../../drivers/machine/driver.ts'
import type { Machine } from '../../model/app/machine.ts'
import { checkNames } from '../../model/app/machine-check-list.ts'
import { type MachineSpec, machineSpec } from '../../model/app/machine-spec.ts'
import { SpecError } from '../../model/app/machine-spec-context.ts'
import { trafficOf } from '../../model/app/network-policy.ts'
import { readMachineEnvironment } from '../../store/app/machine.ts'
import { recordProgress, recordStarted } from '../../store/app/machine-progress.ts'
import { listPolicies } from '../../store/app/network-policy.ts'
import { detachVolumes, isBeingCopied, listMachineVolumes } from '../../store/app/volume.ts'
import type { Tx } from '../../store/db.ts'
import type { World } from '../step.ts'
import { newExits, recordExits } from './machine-exit.ts'
import { ensureImages, type FoundImages } from './machine-image.ts'

export type Start =
  | { is: 'waiting'; note: string; seconds: number }
  | { is: 'up'; save: (tx: Tx) => Promise<void> }
  | { is: 'refused'; reason: string; save?: (tx: Tx) => Promise<void> }

/** A finished image pull wakes the machine; this is the fallback. */
const pullSeconds = 5

/** A finished volume does not wake the machine, and making one takes only a moment. */
const volumeSeconds = 0.3

/** The poll interval while a volume is copied, which can take hours. */
const copySeconds = 1

/** Exit codes by which the box reports that the program could not be executed. */
const notExecutable: Record<number, string> = {
  126: 'cannot be executed',
  127: 'was not found in the image, or a file that it needs is missing',
}

export async function startProgram(machine: Machine, world: World): Promise<Start> {
  const before = world.machines.inspectMachine(machine.id, machine.instanceId)
  if (before.is !== 'up' || before.frozen) {
    const refused = await startMachine(machine, world, { isFrozen: before.is === 'up' })
    if (refused) return refused
  }
  const process = world.machines.inspectMachine(machine.id, machine.instanceId)
  const last = newExits(machine, process).at(-1)
  const problem = last && process.is !== 'up' && last.signal === 0 ? notExecutable[last.exitCode] : undefined
  if (problem === undefined) {
    // Exits from before this start become events now, later ones at the next look.
    const save = async (tx: Tx) => {
      await recordExits(tx, machine, newExits(machine, before))
      await recordStarted(tx, machine.id, checkNames(machine.config))
      // An update that failed has left what only the version before it had mounted.
      await detachUnmounted(tx, machine)
    }
    return { is: 'up', save }
  }
  await world.machines.stopMachine(machine.id, { signal: 'SIGKILL', timeoutMs: 0 })
  const exits = newExits(machine, world.machines.inspectMachine(machine.id, machine.instanceId))
  return {
    is: 'refused',
    reason: `its program ${problem} (exit code ${last!.exitCode})`,
    save: (tx) => recordExits(tx, machine, exits),
  }
}

/** Returns undefined when the program has been started. */
async function startMachine(
  machine: Machine,
  world: World,
  { isFrozen }: { isFrozen: boolean },
): Promise<Exclude<Start, { is: 'up' }> | undefined> {
  const found = await ensureImages(machine, world)
  if (found.is === 'coming') return { is: 'waiting', note: found.note, seconds: pullSeconds }
  if (found.is === 'refused') return found
  const volumes = await listMachineVolumes(world.db, machine.id)
  const failed = volumes.find(({ failure }) => failure !== null)
  if (failed) return { is: 'refused', reason: `its volume ${failed.id} could not be made: ${failed.failure}` }
  const creating = volumes.find(({ state }) => state === 'creating')
  if (creating) return { is: 'waiting', note: `waiting for its volume ${creating.id}`, seconds: volumeSeconds }
  const copied = await findCopied(volumes, world)
  if (copied !== undefined) {
    // A copy of a large volume takes longer than a start may.
    const note = `waiting for the copy of its volume ${copied}`
    await recordProgress(world.db, machine.id, note)
    return { is: 'waiting', note, seconds: copySeconds }
  }
  // On some hosts a volume can only grow while it is not mounted, and a frozen program has it mounted.
  if (!isFrozen) for (const { id, sizeGb } of volumes) await world.volumes.extendVolume(id, sizeGb)
  try {
    await world.machines.startMachine(await buildSpec(found, world))
    return undefined
  } catch (error) {
    if (error instanceof SpecError || error instanceof MachineStartError)
      return { is: 'refused', reason: error.message }
    throw error
  }
}

/** The program would write to a volume while it is copied, or wait in vain for one that is frozen. */
async function findCopied(volumes: { id: string }[], { db }: World): Promise<string | undefined> {
  for (const { id } of volumes) if (await isBeingCopied(db, id)) return id
  return undefined
}

async function buildSpec(found: Extract<FoundImages, { is: 'here' }>, world: World): Promise<MachineSpec> {
  const { machine, image, containerImages } = found
  const [context, { policies }] = await Promise.all([
    readMachineEnvironment(world.db, machine.id, world.encryptionKey),
    listPolicies(world.db, machine.appId),
  ])
  const hasPrivateNetworks = await world.hasPrivateNetworks()
  const { homeNumber } = world
  const spec = machineSpec(machine, image, { ...context, homeNumber, hasPrivateNetworks }, containerImages)
  return { ...spec, policy: trafficOf(policies, machine) }
}

/** Detaches volumes that only the previous version had mounted. */
export async function detachUnmounted(tx: Tx, machine: Machine): Promise<void> {
  const mounted = (machine.config.mounts ?? []).map(({ volume }) => volume!)
  await detachVolumes(tx, machine.id, mounted)
}
