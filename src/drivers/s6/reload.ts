// Configuration files that a running service reads again on SIGHUP. A marker is written before the first file changes
// and removed after the signal, so a crash in between loses no change.
import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { ensureFile, fileMatches } from '../host/atomic-file.ts'

// The files hold no secrets, and access to them is decided by a directory above.
const ownership = { mode: 0o644 }

export function writeReloadableFiles(directory: string, files: Record<string, string>): void {
  const stale = Object.entries(files).filter(([file, text]) => !fileMatches(file, text, ownership))
  // A new file needs no reload: no running service has read an older version of it.
  if (stale.some(([file]) => existsSync(file))) requestReload(directory)
  for (const [file, text] of stale) ensureFile(file, text, ownership)
}

export function requestReload(directory: string): void {
  writeFileSync(`${directory}/reload`, '')
}

export function needsReload(directory: string): boolean {
  return existsSync(`${directory}/reload`)
}

export function clearReload(directory: string): void {
  rmSync(`${directory}/reload`, { force: true })
}
