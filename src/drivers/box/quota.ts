// Whether what a box writes can be limited, and how: by quotas of btrfs, where its layers lie in a subvolume of their own.
// Quotas of other filesystems count by owner or have to be switched on when they are mounted.
import { statfsSync, statSync } from 'node:fs'
import { commandExists, isRoot, run } from '../host/process.ts'

const btrfsType = 0x9123683e

/** Whether layers of boxes in this directory can be subvolumes. */
export function hasSubvolumes(directory: string): boolean {
  return isRoot() && statfsSync(directory).type === btrfsType && commandExists('btrfs')
}

export interface BoxQuota {
  /** Whether a limit holds here. */
  isPossible(): Promise<boolean>
  /** It holds when this returns, if it can at all. Nothing is done when it does already. */
  ensureLimit(layer: string, gigabytes: number | undefined): Promise<void>
}

/** One for each home, since it remembers. */
export function boxQuota(directory: string): BoxQuota {
  let enabled: Promise<boolean> | undefined
  const isPossible = () => {
    enabled ??= hasSubvolumes(directory) ? enable(directory) : Promise.resolve(false)
    return enabled
  }
  const known = new Map<string, string>()
  return {
    isPossible,
    async ensureLimit(layer, gigabytes) {
      if (gigabytes === undefined || !(await isPossible())) return
      // A restore puts another subvolume in its place, and each counts as a device.
      const limit = `${gigabytes} ${statSync(layer).dev}`
      if (known.get(layer) === limit) return
      await run('btrfs', ['qgroup', 'limit', String(Math.round(gigabytes * 1024 ** 3)), layer])
      known.set(layer, limit)
    },
  }
}

/** For the whole filesystem, and as often as one likes. It may be that of a container, which may not. */
async function enable(directory: string): Promise<boolean> {
  return run('btrfs', ['quota', 'enable', directory]).then(
    () => true,
    () => false,
  )
}
