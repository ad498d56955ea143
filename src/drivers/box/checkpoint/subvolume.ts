// On btrfs the layers of a box are directories in one subvolume, which can be snapshotted and limited.
import { existsSync, mkdirSync, renameSync, rmdirSync, symlinkSync } from 'node:fs'
import { basename } from 'node:path'
import { ensureDirectory } from '../../host/atomic-file.ts'
import type { Home } from '../../host/home.ts'
import { run } from '../../host/process.ts'
import { findProjectMount, hasSubvolumes, storageQuota } from '../../storage/quota.ts'
import { ensureBoxDirectory } from '../directory.ts'
import type { BoxDriver } from '../driver.ts'
import { type BoxPaths, boxPaths, boxUid } from '../paths.ts'

export const subvolume = 'layer'

export async function takeSnapshot({ from, parent, name }: { from: string; parent: string; name: string }) {
  const fresh = `${parent}/.new~${name}`
  await removeSnapshot(fresh)
  mkdirSync(fresh, { mode: 0o700 })
  await run('btrfs', ['subvolume', 'snapshot', `${from}/${subvolume}`, `${fresh}/${subvolume}`])
  renameSync(fresh, `${parent}/${name}`)
}

export async function removeSnapshot(directory: string): Promise<void> {
  if (!existsSync(directory)) return
  if (existsSync(`${directory}/${subvolume}`)) {
    await run('btrfs', ['subvolume', 'delete', `${directory}/${subvolume}`])
  }
  rmdirSync(directory)
}

/** Adds disk quotas to boxes whose home can have them, on btrfs with subvolumes. A box does not see the difference. */
export function withSubvolumes(boxes: BoxDriver, home: Home): BoxDriver {
  const quota = storageQuota(home)
  return {
    ...boxes,
    isolation: async () => ({ ...(await boxes.isolation()), limitsStorage: await quota.isPossible() }),
    async ensureBox(spec) {
      const paths = boxPaths(home, spec.id)
      const uid = boxUid(home, spec.slot)
      await ensureSubvolume(home, paths, uid)
      const bytes = spec.storageGb === undefined ? undefined : Math.round(spec.storageGb * 1024 ** 3)
      const layer = `${paths.directory}/${subvolume}`
      if (existsSync(layer)) await quota.ensureLimit(layer, bytes)
      else if (findProjectMount(home.path)) await quota.ensureLimit(paths.directory, bytes, ensureLayers(paths, uid))
      return boxes.ensureBox(spec)
    },
  }
}

/** The driver of boxes sets modes and owners. */
function ensureLayers({ directory, upper, work, upperUsr, workUsr }: BoxPaths, uid: number | undefined): string[] {
  ensureBoxDirectory(directory, uid)
  const layers = [upper, work, upperUsr, workUsr]
  for (const layer of layers) mkdirSync(layer, { recursive: true })
  return layers
}

/** The layers keep their usual paths as links into the subvolume. */
async function ensureSubvolume(home: Home, paths: BoxPaths, uid: number | undefined): Promise<void> {
  if (existsSync(paths.workUsr) || !hasSubvolumes(home.path)) return
  ensureBoxDirectory(paths.directory, uid)
  const layer = `${paths.directory}/${subvolume}`
  if (!existsSync(layer)) {
    const fresh = `${paths.directory}/.new~${subvolume}`
    if (!existsSync(fresh)) await run('btrfs', ['subvolume', 'create', fresh])
    renameSync(fresh, layer)
  }
  for (const path of [paths.upper, paths.work, paths.upperUsr, paths.workUsr]) {
    ensureDirectory(`${layer}/${basename(path)}`, { mode: 0o711 })
    if (!existsSync(path)) symlinkSync(`${subvolume}/${basename(path)}`, path)
  }
}
