// Shows the newest checkpoints of a box in it, below `/.sprite/checkpoints`. Each has a directory as mount point, where
// `start.pl` mounts it when the box starts, and `view.pl` while it runs. When the directory is removed, the kernel removes
// the mounts on it in every mount namespace, so nothing has to be unmounted.
import { existsSync, mkdirSync, readdirSync, rmdirSync, statSync } from 'node:fs'
import { ensureDirectory } from '../../host/atomic-file.ts'
import type { Home } from '../../host/home.ts'
import { run } from '../../host/process.ts'
import { driverProgram } from '../../host/program.ts'
import { readIsolationMode } from '../disk.ts'
import type { BoxPaths } from '../paths.ts'

const maxShown = 5

/** Updates the views, also those in a running box. */
export async function showCheckpoints(home: Home, paths: BoxPaths): Promise<void> {
  if (!prepareViews(paths)) return
  const service = `${home.tree}/${paths.supervisedName}`
  await run('perl', [driverProgram('box/checkpoint/view.pl'), paths.config, service])
}

/** Creates and removes mount points. Returns false without isolation, where nothing can be mounted. */
export function prepareViews(paths: BoxPaths): boolean {
  if (!['full', 'single'].includes(readIsolationMode(paths) ?? '')) return false
  ensureDirectory(paths.views, { mode: 0o755 })
  const newest = listNewest(paths.checkpoints)
  for (const name of readdirSync(paths.views)) if (!newest.includes(name)) hideCheckpoint(paths, name)
  for (const name of newest) if (!existsSync(`${paths.views}/${name}`)) mkdirSync(`${paths.views}/${name}`)
  return true
}

export function hideCheckpoint(paths: BoxPaths, checkpoint: string): void {
  if (existsSync(`${paths.views}/${checkpoint}`)) rmdirSync(`${paths.views}/${checkpoint}`)
}

/** Sorts by the time of the last change of the directory. Unfinished copies have a tilde in their name. */
function listNewest(directory: string): string[] {
  if (!existsSync(directory)) return []
  const complete = readdirSync(directory).filter((name) => !name.includes('~'))
  const madeAt = (name: string) => statSync(`${directory}/${name}`).mtimeMs
  return complete.sort((one, other) => madeAt(other) - madeAt(one)).slice(0, maxShown)
}
