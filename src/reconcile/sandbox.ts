import { boxSpec } from '../drivers/box-spec.ts'
import type { Sandbox, sandboxStates } from '../model/sandbox.ts'
import { releaseSlot } from '../store/sandbox.ts'
import { advance, type Steps, wait } from './step.ts'

/** The supervisor brings a box back by itself; this catches what it could not, such as a box removed by hand. */
const lookAgainSeconds = 30

export const sandboxSteps: Steps<typeof sandboxStates, Sandbox> = {
  async running(sandbox, { boxes }) {
    await boxes.ensureBox(boxSpec(sandbox))
    return wait(lookAgainSeconds, 'running')
  },

  async deleting(sandbox, { boxes }) {
    if (sandbox.slot !== null) await boxes.removeBox(boxSpec(sandbox))
    return advance('gone', '', (tx) => releaseSlot(tx, sandbox.id))
  },
}
