// Limits the size of directories: with quota groups of subvolumes on Btrfs, and with project quotas on XFS and ext4, which
// must be mounted with them. A storage pool always has one or the other.
import { existsSync, mkdirSync, readdirSync, renameSync, statfsSync, statSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import type { Home } from '../host/home.ts'
import { commandExists, isRoot, run } from '../host/process.ts'
import type { StorageQuota } from './driver.ts'
import { findMountOf, type Mount } from './mount-table.ts'
import { assignProject, ensureProject, limitProject, readProject } from './project.ts'
import { createSubvolume, isSubvolume } from './subvolume.ts'

type QuotaHome = Pick<Home, 'path'> & Partial<Pick<Home, 'uidStart'>>

const btrfsType = 0x9123683e

/** True where a directory can be a subvolume. */
export function hasSubvolumes(directory: string): boolean {
  return isRoot() && statfsSync(directory).type === btrfsType && commandExists('btrfs')
}

/** The mount that a path lies in, if it has project quotas. */
export function findProjectMount(path: string): Mount | undefined {
  if (!isRoot() || !commandExists('xfs_quota')) return undefined
  const mount = findMountOf(path)
  const isOn = mount?.options.some((option) => ['prjquota', 'pquota'].includes(option)) ?? false
  return isOn && ['xfs', 'ext4'].includes(mount!.fileSystem) ? mount : undefined
}

/** To be created once per home, because it caches the limits that are set. */
export function storageQuota(home: QuotaHome): StorageQuota {
  if (hasSubvolumes(home.path)) return subvolumeQuota(home.path)
  const mount = findProjectMount(home.path)
  if (mount && home.uidStart !== undefined) return projectQuota({ path: home.path, uidStart: home.uidStart }, mount)
  const isPossible = mount !== undefined
  return { isPossible: async () => isPossible, ensureDirectory: async () => {}, ensureLimit: async () => {} }
}

function subvolumeQuota(home: string): StorageQuota {
  let enabled: Promise<boolean> | undefined
  const isPossible = () => {
    enabled ??= enable(home)
    return enabled
  }
  const current = new Map<string, string>()
  return {
    isPossible,
    async ensureDirectory(directory) {
      if (existsSync(directory)) return
      const fresh = `${dirname(directory)}/.new~${basename(directory)}`
      if (!existsSync(fresh)) await createSubvolume(fresh)
      renameSync(fresh, directory)
    },
    async ensureLimit(directory, bytes) {
      if (!isSubvolume(directory) || (bytes === undefined && !current.has(directory)) || !(await isPossible())) return
      // A restore replaces the subvolume. Each has a device number of its own, which is used again when it is gone.
      const { dev, birthtimeMs } = statSync(directory)
      const limit = `${bytes ?? 'none'} ${dev} ${birthtimeMs}`
      if (current.get(directory) === limit) return
      await run('btrfs', ['qgroup', 'limit', String(bytes ?? 'none'), directory])
      current.set(directory, limit)
    },
  }
}

/** Enables quotas for the whole file system, which is repeatable. A container may lack the permission. */
async function enable(directory: string): Promise<boolean> {
  return run('btrfs', ['quota', 'enable', directory]).then(
    () => true,
    () => false,
  )
}

function projectQuota(home: Pick<Home, 'path' | 'uidStart'>, { mountPoint }: Mount): StorageQuota {
  const current = new Map<string, string>()
  return {
    isPossible: async () => true,
    async ensureDirectory(directory) {
      mkdirSync(directory, { recursive: true })
      await ensureLimitedProject(home, directory)
    },
    async ensureLimit(directory, bytes, parts) {
      if (!existsSync(directory) || (bytes === undefined && !current.has(directory))) return
      // A restore replaces the directory, or a part of it.
      const inodes = [directory, ...(parts ?? [])].map((path) => statSync(path))
      const limit = `${bytes ?? 0} ${inodes.map(({ ino, birthtimeMs }) => `${ino} ${birthtimeMs}`)}`
      if (current.get(directory) === limit) return
      await limitProject(mountPoint, await ensureLimitedProject(home, directory, parts), bytes)
      current.set(directory, limit)
    },
  }
}

/**
 * Gives everything in the directory the project of its path. A directory that has a project passes it on to new files.
 * What was a part before and is not any more, such as a replaced layer that is kept as a checkpoint, loses it.
 */
async function ensureLimitedProject(
  home: Pick<Home, 'path' | 'uidStart'>,
  directory: string,
  parts = [directory],
): Promise<number> {
  const project = await ensureProject(home, directory)
  let isChanged = false
  for (const part of parts) {
    if ((await readProject(part)) === project) continue
    await assignProject(part, project)
    isChanged = true
  }
  if (!isChanged || parts.includes(directory)) return project
  const others = readdirSync(directory).map((name) => `${directory}/${name}`)
  for (const other of others.filter((path) => !parts.includes(path))) await assignProject(other, 0)
  return project
}
