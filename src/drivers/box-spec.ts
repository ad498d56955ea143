import type { Sandbox } from '../model/sandbox.ts'
import type { BoxSpec } from './box.ts'

/** However many processes a sandbox starts, the host keeps enough for everybody else. */
const maxProcesses = 4096

export function boxSpec(sandbox: Sandbox): BoxSpec {
  const memoryMb = sandbox.resources?.memoryMb ?? sandbox.memoryMb
  return {
    id: sandbox.id,
    slot: sandbox.slot!,
    hostname: sandbox.name,
    limits: { memoryMb, cpus: sandbox.cpus, pids: maxProcesses },
    isMinimal: sandbox.privileges?.profile === 'minimal',
    policy: sandbox.networkPolicy,
  }
}
