import { type FSWatcher, watch } from 'node:fs'
import { ensureDirectory } from '../host/fresh.ts'

/** The names of files in a directory, whenever one is written to. */
export function watchChanges(directory: string, listener: (name: string) => void): () => void {
  ensureDirectory(directory, { mode: 0o700 })
  const watcher: FSWatcher = watch(directory, { persistent: false }, (_, name) => {
    if (name !== null) listener(name)
  })
  // The directory is as old as the home. Whoever listens looks by himself from time to time.
  watcher.on('error', () => undefined)
  return () => watcher.close()
}
