import { unavailable } from '../../model/errors.ts'
import { findUnheld } from '../../store/app/network-policy.ts'
import type { LiveContext } from '../context.ts'
import { within } from './machine-wait.ts'

/** Rules are put in force in the network that each machine has of its own. */
export async function policiesEnforced(ctx: LiveContext): Promise<boolean> {
  return (await ctx.machines.isolation()).network === 'own'
}

const deadlineMs = 10_000
/** Changes are told; this is for what was not heard. */
const lookAgainMs = 1_000

/** Until all machines of the app that run are held to this version of its policies. */
export async function waitUntilHeld(
  ctx: LiveContext,
  { appId, version }: { appId: string; version: number },
): Promise<void> {
  const deadline = performance.now() + deadlineMs
  let wake = () => {}
  const unsubscribe = ctx.machineFeed.subscribe((change) => {
    if (change === undefined || change.appId === appId) wake()
  })
  try {
    for (;;) {
      const changed = new Promise<void>((resolve) => {
        wake = resolve
      })
      const unheld = await findUnheld(ctx.db, appId, version)
      if (unheld === undefined) return
      if (performance.now() > deadline)
        throw unavailable(`the change is kept, but the machine ${unheld} has not been held to it yet`)
      await within(changed, lookAgainMs)
    }
  } finally {
    unsubscribe()
  }
}
