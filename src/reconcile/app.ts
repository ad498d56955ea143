import type { App, appStates } from '../model/app.ts'
import { removeAppContents } from '../store/app.ts'
import { hasVolumes } from '../store/volume.ts'
import { advance, type Steps, wait } from './step.ts'
import { dismissVolumes } from './volume.ts'

export const appSteps: Steps<typeof appStates, App> = {
  async deleting(app, { db }) {
    const dismiss = await dismissVolumes(db, app.id)
    if (dismiss) return wait(0, 'removing machines and volumes', dismiss)
    if (await hasVolumes(db, app.id)) return wait(1, 'removing machines and volumes')
    const removed = await removeAppContents(db, app.id)
    return removed === 0 ? advance('gone') : wait(0, 'removing machines and volumes')
  },
}
