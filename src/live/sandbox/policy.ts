import { invalid } from '../../model/errors.ts'
import type { LiveContext } from '../context.ts'
import { getSandbox, startSandbox } from './sandbox.ts'

/** Rejects network rules on hosts that cannot enforce them. */
export function requireEnforceable(ctx: LiveContext, rules: unknown[]): void {
  if (rules.length === 0 || ctx.boxes.policiesPossible()) return
  throw invalid('network rules cannot be enforced on this machine: the platform must run as root, with nft and dnsmasq')
}

/** Applies the rules to a running sandbox. Others get them when they start. */
export async function applyNetworkPolicy(ctx: LiveContext, name: string): Promise<void> {
  const { id, state, problem, image } = await getSandbox(ctx, name, 'write')
  if (state === 'running' && problem === null && image?.digest !== null) await startSandbox(ctx, id)
}
