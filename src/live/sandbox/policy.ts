import { boxSpec } from '../../drivers/box/spec.ts'
import { invalid } from '../../model/errors.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { getSandbox } from './sandbox.ts'

/** A rule that nobody would enforce is refused, not kept. */
export function refuseUnenforced(ctx: LiveContext, rules: unknown[]): void {
  if (rules.length === 0 || ctx.boxes.policiesPossible()) return
  throw invalid('network rules cannot be enforced on this machine: the platform must run as root, with nft and dnsmasq')
}

/** In force when this returns. A sandbox that does not run gets them before it starts. */
export async function applyNetworkPolicy(ctx: LiveContext, name: string): Promise<void> {
  const sandbox = await getSandbox(ctx, name, 'write')
  if (sandbox.state === 'running' && sandbox.image?.digest !== null)
    await withDeadline(ctx.boxes.ensureBox(boxSpec(sandbox)), 'the sandbox')
}
