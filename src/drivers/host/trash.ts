// Deleting a data directory takes long, and on ext4 it slows down the creation of other files. So it is renamed into a
// trash directory, which is fast and final, and a separate process with a low priority deletes it.
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, readdirSync, renameSync } from 'node:fs'
import { ensureDirectory } from './atomic-file.ts'
import type { Home } from './home.ts'
import { baseEnvironment } from './process.ts'

/** Moves a path to the trash; does nothing if it does not exist. */
export function moveToTrash(home: Home, path: string): void {
  ensureDirectory(trashDirectory(home), { mode: 0o700 })
  try {
    renameSync(path, `${trashDirectory(home)}/${randomBytes(8).toString('hex')}`)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
}

function trashDirectory(home: Home): string {
  return `${home.path}/trash`
}

/** The homes whose trash is being deleted, and whether another deletion was requested meanwhile. */
const sweeping = new Map<string, boolean>()

/** Starts deleting what is in the trash, including what a killed process left there. */
export function emptyTrash(home: Home): void {
  ensureDirectory(trashDirectory(home), { mode: 0o700 })
  if (sweeping.has(home.path)) return void sweeping.set(home.path, true)
  if (readdirSync(trashDirectory(home)).length === 0) return
  sweeping.set(home.path, false)
  const end = () => {
    const isRequested = sweeping.get(home.path)
    sweeping.delete(home.path)
    if (isRequested && existsSync(trashDirectory(home))) emptyTrash(home)
  }
  const child = spawn('nice', ['-n', '19', 'find', trashDirectory(home), '-mindepth', '1', '-delete'], {
    detached: true,
    stdio: 'ignore',
    env: baseEnvironment,
    cwd: '/',
  })
  // The next call retries what could not be deleted.
  child.once('error', end)
  child.once('exit', end)
  child.unref()
}
