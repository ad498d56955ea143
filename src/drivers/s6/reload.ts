// Files that a running service reads again on SIGHUP. That some of them have changed is noted before the first one
// changes and forgotten after the signal, so that a crash in between loses no change.
import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { ensureFile, isFileWith } from '../host/fresh.ts'

// Anybody may read them: who can pass through the directory is decided above it, and nothing in them is secret.
const ownership = { mode: 0o644 }

export function writeConfiguration(directory: string, files: Record<string, string>): void {
  const stale = Object.entries(files).filter(([file, text]) => !isFileWith(file, text, ownership))
  // What was not there yet was read by nobody.
  if (stale.some(([file]) => existsSync(file))) noteReload(directory)
  for (const [file, text] of stale) ensureFile(file, text, ownership)
}

export function noteReload(directory: string): void {
  writeFileSync(`${directory}/reload`, '')
}

export function needsReload(directory: string): boolean {
  return existsSync(`${directory}/reload`)
}

export function forgetReload(directory: string): void {
  rmSync(`${directory}/reload`, { force: true })
}
