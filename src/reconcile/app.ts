import type { App, appStates } from '../model/app.ts'
import { removeAppContents } from '../store/app.ts'
import { advance, type Steps, wait } from './step.ts'

export const appSteps: Steps<typeof appStates, App> = {
  async deleting(app, { db }) {
    const removed = await removeAppContents(db, app.id)
    return removed === 0 ? advance('gone') : wait(0, 'removing machines and volumes')
  },
}
