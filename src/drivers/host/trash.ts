// Deleting a data directory takes long, and on ext4 it slows down whoever makes files next. So it is renamed away,
// which takes no time and is final, and deleted in peace by a process that does not depend on ours.
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, readdirSync, renameSync } from 'node:fs'
import { ensureDirectory } from './fresh.ts'
import type { Home } from './home.ts'
import { baseEnvironment } from './process.ts'

/** Afterwards nothing is at the path. Harmless when there was nothing. */
export function discard(home: Home, path: string): void {
  ensureDirectory(trashOf(home), { mode: 0o700 })
  try {
    renameSync(path, `${trashOf(home)}/${randomBytes(8).toString('hex')}`)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
}

function trashOf(home: Home): string {
  return `${home.path}/trash`
}

/** Places that are swept now, and whether something came after that began. */
const sweeping = new Map<string, boolean>()

/** Starts the deletion of what was discarded, also by a process that died before it came to this. */
export function sweepTrash(home: Home): void {
  ensureDirectory(trashOf(home), { mode: 0o700 })
  if (sweeping.has(home.path)) return void sweeping.set(home.path, true)
  if (readdirSync(trashOf(home)).length === 0) return
  sweeping.set(home.path, false)
  const end = () => {
    const isAsked = sweeping.get(home.path)
    sweeping.delete(home.path)
    if (isAsked && existsSync(trashOf(home))) sweepTrash(home)
  }
  const child = spawn('nice', ['-n', '19', 'find', trashOf(home), '-mindepth', '1', '-delete'], {
    detached: true,
    stdio: 'ignore',
    env: baseEnvironment,
    cwd: '/',
  })
  // Whatever it could not delete is still there for the next sweep.
  child.once('error', end)
  child.once('exit', end)
  child.unref()
}
