import type { NetworkPolicy } from './policy.ts'
import type { Sandbox, SandboxImage } from './sandbox.ts'

/** Everything a box is made from. The names it uses on the host (uids, addresses, services) follow from `id` and `slot`. */
export interface BoxSpec {
  id: string
  /** A number from 1 to 1023 that no other box of this home has at the same time; uids and addresses follow from it. */
  slot: number
  hostname: string
  limits: { memoryMb: number; cpus: number; pids: number }
  /** The disk quota, enforced where the filesystem supports one. */
  storageGb?: number
  /** True to drop all capabilities, so that root in the box cannot read files of other users or switch to them. */
  isMinimal?: boolean
  /** The host names the box may resolve and connect to; a policy without rules allows all. */
  policy?: NetworkPolicy
  /** The image whose filesystem the box has; without one it sees the programs of the host. */
  image?: BoxImage
}

export interface BoxImage {
  /** Null until the image has been pulled; the box cannot start before that. */
  digest: string | null
  /** The default environment of commands. */
  env: Record<string, string>
  /** The default working directory of commands; empty for the home directory. */
  workingDir: string
}

/** Keeps enough process ids free for the host and other sandboxes when one forks without end. */
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
    ...(sandbox.image && { image: boxImage(sandbox.image) }),
  }
}

function boxImage({ digest, env, workingDir }: SandboxImage): BoxImage {
  return { digest, env, workingDir }
}
