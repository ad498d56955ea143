// The directory that defines a service for s6. A new one is renamed into place as a whole, and changes replace one file
// at a time by a rename, so s6 never runs half of a script.
import { randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { readTextIfPresent } from '../host/file.ts'
import { signalName } from './status.ts'

export interface SupervisorPaths {
  treeDirectory: string
  logDirectory: string
}

export function serviceDirectory(paths: SupervisorPaths, name: string): string {
  if (!/^[a-z0-9][a-z0-9.-]*$/.test(name)) throw new Error(`not a service name: ${JSON.stringify(name)}`)
  return `${paths.treeDirectory}/${name}`
}

/**
 * Returns a new name in the tree that s6 ignores. Service names have no `~`, so the name of the service can be parsed.
 */
export function hiddenDirectory(paths: SupervisorPaths, purpose: 'new' | 'removed', name: string): string {
  return `${paths.treeDirectory}/.${purpose}~${name}~${randomBytes(6).toString('hex')}`
}

/** Lists what interrupted creations and removals of a service have left behind. */
export function listHiddenDirectories(paths: SupervisorPaths, name: string): string[] {
  if (!existsSync(paths.treeDirectory)) return []
  return readdirSync(paths.treeDirectory)
    .filter((entry) => entry.startsWith(`.removed~${name}~`) || entry.startsWith(`.new~${name}~`))
    .map((entry) => `${paths.treeDirectory}/${entry}`)
}

/** An environment variable of every process of a service, by which processes that left its session are found. */
export function serviceMark(paths: SupervisorPaths, name: string): string {
  return `BERTH_SERVICE=${paths.treeDirectory}/${name}`
}

/** Writes the files that differ. `hasPendingChange` is true until the service has been restarted with them. */
export function ensureDefinition(paths: SupervisorPaths, name: string, definition: Record<string, string>): void {
  const directory = serviceDirectory(paths, name)
  ensureFirstDefinition(paths, name, definition)
  const stale = Object.entries(definition).filter(([file, text]) => readTextIfPresent(`${directory}/${file}`) !== text)
  if (stale.length === 0) return
  // The marker is written before the first change, so the service is restarted even after a crash in between.
  writeFileSync(`${directory}/changed`, '')
  for (const [file, text] of stale) {
    writeFileSync(`${directory}/${file}.next`, text, { mode: modeOf(file) })
    renameSync(`${directory}/${file}.next`, `${directory}/${file}`)
  }
}

/** Creates the directory; an existing one stays as it is. */
export function ensureFirstDefinition(paths: SupervisorPaths, name: string, definition: Record<string, string>): void {
  const directory = serviceDirectory(paths, name)
  if (existsSync(directory)) return
  const fresh = hiddenDirectory(paths, 'new', name)
  mkdirSync(`${fresh}/log`, { recursive: true, mode: 0o700 })
  for (const [file, text] of Object.entries(definition)) writeFileSync(`${fresh}/${file}`, text, { mode: modeOf(file) })
  try {
    renameSync(fresh, directory)
  } catch (error) {
    rmSync(fresh, { recursive: true, force: true })
    // If another process created it first, the caller compares its files next.
    if (!existsSync(directory)) throw error
  }
}

/** Creates a service that has no log because it writes the log of another service. An existing one stays as it is. */
export function ensureLoggerService(paths: SupervisorPaths, name: string, run: string): void {
  const directory = serviceDirectory(paths, name)
  if (existsSync(directory)) return
  const fresh = hiddenDirectory(paths, 'new', name)
  mkdirSync(fresh, { recursive: true, mode: 0o700 })
  writeFileSync(`${fresh}/run`, run, { mode: modeOf('run') })
  renameSync(fresh, directory)
}

function modeOf(file: string): number {
  return file.endsWith('run') || file === 'finish' ? 0o700 : 0o600
}

export function hasPendingChange(paths: SupervisorPaths, name: string): boolean {
  return existsSync(`${serviceDirectory(paths, name)}/changed`)
}

export function clearPendingChange(paths: SupervisorPaths, name: string): void {
  rmSync(`${serviceDirectory(paths, name)}/changed`, { force: true })
}

/** Whether the service has a `down` file: s6 does not start it on its own, not even after a reboot. */
export function isMarkedDown(paths: SupervisorPaths, name: string): boolean {
  return existsSync(`${serviceDirectory(paths, name)}/down`)
}

/** Reads how a service with `once` ended; the finish script has written it to the `down` file. */
export function findEnd(paths: SupervisorPaths, name: string): { exitCode?: number; signal?: string } | undefined {
  const end = /^(\d+) (\d+)$/m.exec(readTextIfPresent(`${serviceDirectory(paths, name)}/down`) ?? '')
  if (!end) return undefined
  if (Number(end[1]) < 256) return { exitCode: Number(end[1]) }
  return { signal: signalName(Number(end[2])) }
}

export function markDown(paths: SupervisorPaths, name: string): void {
  writeFileSync(`${serviceDirectory(paths, name)}/down`, '')
}

export function clearDown(paths: SupervisorPaths, name: string): void {
  rmSync(`${serviceDirectory(paths, name)}/down`, { force: true })
}
