import { unavailable } from '../../model/errors.ts'
import { findMachineWithOldPolicies } from '../../store/app/network-policy.ts'
import type { LiveContext } from '../context.ts'
import { resolveWithin } from './machine-wait.ts'

/** Policies are enforced in the machine's network namespace, so every machine needs one. */
export async function policiesEnforced(ctx: LiveContext): Promise<boolean> {
  return (await ctx.machines.isolation()).network === 'own'
}

const timeoutMs = 10_000
/** The feed reports changes; this is the fallback. */
const pollMs = 1_000

/** Waits until this version of the policies is applied to all running machines of the app. */
export async function waitUntilApplied(
  ctx: LiveContext,
  { appId, version }: { appId: string; version: number },
): Promise<void> {
  const deadline = performance.now() + timeoutMs
  let wake = () => {}
  const unsubscribe = ctx.machineFeed.subscribe((change) => {
    if (change === undefined || change.appId === appId) wake()
  })
  try {
    for (;;) {
      const changed = new Promise<void>((resolve) => {
        wake = resolve
      })
      const pending = await findMachineWithOldPolicies(ctx.db, appId, version)
      if (pending === undefined) return
      if (performance.now() > deadline)
        throw unavailable(`the change is stored, but has not been applied to the machine ${pending} yet`)
      await resolveWithin(changed, pollMs)
    }
  } finally {
    unsubscribe()
  }
}
