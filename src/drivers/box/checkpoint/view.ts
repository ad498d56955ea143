// The newest checkpoints of a box can be read inside it, below `/.sprite/checkpoints`. Of each that is to be seen there is a
// directory; the start of a box mounts a view at each, and so does a program while the box runs. When such a directory is
// removed, the kernel takes away what is mounted there in any box, so that nothing has to be undone.
import { existsSync, mkdirSync, readdirSync, rmdirSync, statSync } from 'node:fs'
import { ensureDirectory } from '../../host/fresh.ts'
import type { Home } from '../../host/home.ts'
import { run } from '../../host/process.ts'
import { driverProgram } from '../../host/program.ts'
import { readWay } from '../disk.ts'
import type { BoxPaths } from '../paths.ts'

const shownCheckpoints = 5

/** Also while the box runs. */
export async function showCheckpoints(home: Home, paths: BoxPaths): Promise<void> {
  if (!arrangeViews(paths)) return
  const service = `${home.tree}/${paths.supervisedName}`
  await run('perl', [driverProgram('box/checkpoint/view.pl'), paths.config, service])
}

/** For the next start of the box. False where there are no places to mount at. */
export function arrangeViews(paths: BoxPaths): boolean {
  if (!['full', 'single'].includes(readWay(paths) ?? '')) return false
  ensureDirectory(paths.views, { mode: 0o755 })
  const newest = listNewest(paths.checkpoints)
  for (const name of readdirSync(paths.views)) if (!newest.includes(name)) hideCheckpoint(paths, name)
  for (const name of newest) if (!existsSync(`${paths.views}/${name}`)) mkdirSync(`${paths.views}/${name}`)
  return true
}

export function hideCheckpoint(paths: BoxPaths, checkpoint: string): void {
  if (existsSync(`${paths.views}/${checkpoint}`)) rmdirSync(`${paths.views}/${checkpoint}`)
}

/** By when the last of its layers came to it. What is not whole yet has other names. */
function listNewest(directory: string): string[] {
  if (!existsSync(directory)) return []
  const whole = readdirSync(directory).filter((name) => !name.includes('~'))
  const made = (name: string) => statSync(`${directory}/${name}`).mtimeMs
  return whole.sort((one, other) => made(other) - made(one)).slice(0, shownCheckpoints)
}
