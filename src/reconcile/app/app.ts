import type { App, appStates } from '../../model/app/app.ts'
import { removeAppContents } from '../../store/app/app.ts'
import { hasMachines } from '../../store/app/machine-progress.ts'
import { hasVolumes } from '../../store/app/volume.ts'
import { advance, type Steps, wait } from '../step.ts'
import { dismissMachines } from './machine.ts'
import { dismissVolumes } from './volume.ts'

export const appSteps: Steps<typeof appStates, App> = {
  async deleting(app, { db }) {
    const note = 'removing machines and volumes'
    const dismissed = await dismissMachines(db, app.id)
    if (dismissed) return wait(0, note, dismissed)
    if (await hasMachines(db, app.id)) return wait(0.3, note)
    // Nothing has them mounted any more.
    const removal = await dismissVolumes(db, app.id)
    if (removal) return wait(0, note, removal)
    if (await hasVolumes(db, app.id)) return wait(0.3, note)
    const removed = await removeAppContents(db, app.id)
    return removed === 0 ? advance('gone') : wait(0, note)
  },
}
