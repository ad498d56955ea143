import type { Sandbox, SandboxImage } from '../../model/sandbox/sandbox.ts'
import type { BoxImage, BoxSpec } from './driver.ts'

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
    storageGb: sandbox.storageGb,
    ...(sandbox.image && { image: imageOf(sandbox.image) }),
  }
}

function imageOf({ digest, env, workingDir }: SandboxImage): BoxImage {
  return { digest, env, workingDir }
}
