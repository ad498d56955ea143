import { type FSWatcher, watch } from 'node:fs'
import { ensureDirectory } from '../host/atomic-file.ts'

/** Calls the listener with the name of each file in the directory that is written. */
export function watchChanges(directory: string, listener: (name: string) => void): () => void {
  ensureDirectory(directory, { mode: 0o700 })
  const watcher: FSWatcher = watch(directory, { persistent: false }, (_, name) => {
    if (name !== null) listener(name)
  })
  // The directory is never removed, and listeners also poll, so a missed event only causes a delay.
  watcher.on('error', () => undefined)
  return () => watcher.close()
}
