import type { App, appStates } from '../../model/app/app.ts'
import { snapshotStates, volumeStates } from '../../model/app/volume.ts'
import { removeAppContents } from '../../store/app/app.ts'
import { destroyMachine } from '../../store/app/machine-command.ts'
import { hasMachines, listMachinesToDestroy } from '../../store/app/machine-progress.ts'
import { hasVolumes, listVolumesToDestroy, snapshotsToRemove } from '../../store/app/volume.ts'
import type { Query, Tx } from '../../store/db.ts'
import { transition } from '../../store/transition.ts'
import { advance, type Steps, wait } from '../step.ts'

/** Limits the length of a transaction, so that deleting a large app does not block others. */
const maxRemovalsPerStep = 100

export const appSteps: Steps<typeof appStates, App> = {
  async deleting(app, { db }) {
    const note = 'removing machines and volumes'
    const destroyMachines = await machineRemoval(db, app.id)
    if (destroyMachines) return wait(0, note, destroyMachines)
    if (await hasMachines(db, app.id)) return wait(0.3, note)
    // Volumes come second because machines have them mounted.
    const removeVolumes = await volumeRemoval(db, app.id)
    if (removeVolumes) return wait(0, note, removeVolumes)
    if (await hasVolumes(db, app.id)) return wait(0.3, note)
    const removed = await removeAppContents(db, app.id)
    return removed === 0 ? advance('gone') : wait(0, note)
  },
}

type Save = (tx: Tx) => Promise<void>

/** Returns the change that starts the removal of the next machines, or undefined when all are being removed. */
async function machineRemoval(db: Query, appId: string): Promise<Save | undefined> {
  const machines = await listMachinesToDestroy(db, appId, maxRemovalsPerStep)
  if (machines.length === 0) return undefined
  return async (tx) => {
    for (const id of machines) await destroyMachine(tx, id, 'flyd')
  }
}

/** Returns the change that starts the removal of the next volumes and snapshots, or undefined when none are left. */
async function volumeRemoval(db: Query, appId: string): Promise<Save | undefined> {
  const volumes = await listVolumesToDestroy(db, appId, maxRemovalsPerStep)
  const snapshots = await snapshotsToRemove(db, appId, maxRemovalsPerStep)
  if (volumes.length === 0 && snapshots.length === 0) return undefined
  return async (tx) => {
    for (const id of snapshots) await transition(tx, 'snapshot', snapshotStates, id, 'remove')
    for (const id of volumes) await transition(tx, 'volume', volumeStates, id, 'remove')
  }
}
