// Disk quotas of boxes. They need btrfs, where the layers of a box are a subvolume with a quota group. Quotas of other
// filesystems count by owner or must be enabled when the filesystem is mounted.
import { statfsSync, statSync } from 'node:fs'
import { commandExists, isRoot, run } from '../host/process.ts'

const btrfsType = 0x9123683e

/** True where the layers of a box in this directory can be a subvolume. */
export function hasSubvolumes(directory: string): boolean {
  return isRoot() && statfsSync(directory).type === btrfsType && commandExists('btrfs')
}

export interface BoxQuota {
  isPossible(): Promise<boolean>
  /** Sets the limit unless it is set already. Does nothing where quotas are not possible. */
  ensureLimit(layer: string, gigabytes: number | undefined): Promise<void>
}

/** To be created once per home, because it caches the limits that are set. */
export function boxQuota(directory: string): BoxQuota {
  let enabled: Promise<boolean> | undefined
  const isPossible = () => {
    enabled ??= hasSubvolumes(directory) ? enable(directory) : Promise.resolve(false)
    return enabled
  }
  const current = new Map<string, string>()
  return {
    isPossible,
    async ensureLimit(layer, gigabytes) {
      if (gigabytes === undefined || !(await isPossible())) return
      // A restore replaces the subvolume. Each subvolume has a device number of its own.
      const limit = `${gigabytes} ${statSync(layer).dev}`
      if (current.get(layer) === limit) return
      await run('btrfs', ['qgroup', 'limit', String(Math.round(gigabytes * 1024 ** 3)), layer])
      current.set(layer, limit)
    },
  }
}

/** Enables quotas for the whole filesystem, which is repeatable. A container may lack the permission. */
async function enable(directory: string): Promise<boolean> {
  return run('btrfs', ['quota', 'enable', directory]).then(
    () => true,
    () => false,
  )
}
