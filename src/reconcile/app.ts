import type { App, appStates } from '../model/app.ts'
import { removeAppContents } from '../store/app.ts'
import { hasMachines } from '../store/machine-change.ts'
import { hasVolumes } from '../store/volume.ts'
import { dismissMachines } from './machine.ts'
import { advance, type Steps, wait } from './step.ts'
import { dismissVolumes } from './volume.ts'

export const appSteps: Steps<typeof appStates, App> = {
  async deleting(app, { db }) {
    const dismiss = (await dismissMachines(db, app.id)) ?? (await dismissVolumes(db, app.id))
    if (dismiss) return wait(0, 'removing machines and volumes', dismiss)
    if (await hasMachines(db, app.id)) return wait(0.3, 'removing machines and volumes')
    if (await hasVolumes(db, app.id)) return wait(1, 'removing machines and volumes')
    const removed = await removeAppContents(db, app.id)
    return removed === 0 ? advance('gone') : wait(0, 'removing machines and volumes')
  },
}
