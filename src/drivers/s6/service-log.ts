import { existsSync, readdirSync } from 'node:fs'
import { readTextIfPresent } from '../host/file.ts'
import { type SupervisorPaths, serviceDirectory } from './service-directory.ts'

/** Reads the last lines of a log that s6-log has written, oldest first. */
export function readLog(paths: SupervisorPaths, name: string, lines: number): string[] {
  serviceDirectory(paths, name) // rejects invalid names
  const directory = `${paths.logDirectory}/${name}`
  if (!existsSync(directory)) return []
  // s6-log names full files by the time they were closed, so names sort by age; `current` is the newest.
  const files = readdirSync(directory).filter((file) => file.startsWith('@'))
  let found: string[] = []
  for (const file of ['current', ...files.sort().reverse()]) {
    if (found.length >= lines) break
    found = [...splitLines(readTextIfPresent(`${directory}/${file}`)), ...found]
  }
  return found.slice(Math.max(0, found.length - lines))
}

function splitLines(text: string | undefined): string[] {
  return text ? text.trimEnd().split('\n') : []
}
