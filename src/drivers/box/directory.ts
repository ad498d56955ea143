// The directory of a sandbox on the host. It holds files of a tenant, among them setuid programs.
import { readdirSync, statSync } from 'node:fs'
import { ensureDirectory } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'
import { isRoot } from '../host/process.ts'

/** Root in the box may traverse its own directory, and other users of the host may not. */
export function ensureBoxDirectory(directory: string, uid: number | undefined): void {
  ensureDirectory(directory, uid === undefined ? { mode: 0o700 } : { mode: 0o710, uid: 0, gid: uid })
}

/** Closes directories that an earlier version left open to other users. Starting a box does the same for its own. */
export function closeBoxDirectories(home: Pick<Home, 'path'>): void {
  const parent = `${home.path}/sandbox`
  for (const directory of readdirSync(parent).map((name) => `${parent}/${name}`)) {
    // The box owns this directory, but not its parents, and so cannot replace it.
    const owned = statSync(`${directory}/run/.s6-svscan`, { throwIfNoEntry: false })
    if (owned) ensureBoxDirectory(directory, isRoot() ? owned.uid : undefined)
  }
}
