// The names in a repository, and the few operations that all of its parts need.
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, readdirSync, renameSync } from 'node:fs'
import { ensureDirectory } from '../host/atomic-file.ts'
import { baseEnvironment } from '../host/process.ts'

export const idPattern = /^[a-z0-9]{16}$/
export const stagedPrefix = '.staged~'
const labelPattern = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/

export type RepositoryPaths = ReturnType<typeof repositoryPaths>

// Checks every name, so that no path leaves its directory.
export function repositoryPaths(root: string) {
  function cluster(id: string): string {
    if (!idPattern.test(id)) throw new Error(`not the id of a cluster: ${JSON.stringify(id)}`)
    return `${root}/${id}`
  }
  function backup(id: string, label: string, prefix = ''): string {
    if (!labelPattern.test(label)) throw new Error(`not the label of a backup: ${JSON.stringify(label)}`)
    return `${cluster(id)}/backups/${prefix}${label}`
  }
  return {
    cluster,
    backup: (id: string, label: string) => backup(id, label),
    staged: (id: string, label: string) => backup(id, label, stagedPrefix),
    archive(id: string, epoch: number): string {
      if (!Number.isSafeInteger(epoch) || epoch < 0) throw new Error(`not an epoch: ${epoch}`)
      return `${cluster(id)}/archive/${epoch}`
    },
  }
}

// The platform's own files of a backup are beside this directory, where its owner cannot replace them.
export function workDirectory(staged: string): string {
  return `${staged}/work`
}

/** Lists complete entries; none if the directory does not exist. */
export function listNames(directory: string): string[] {
  if (!existsSync(directory)) return []
  return readdirSync(directory)
    .filter((name) => !name.startsWith('.'))
    .sort()
}

const privateMode = { mode: 0o700 }

export function ensureDirectories(...paths: string[]): void {
  for (const path of paths) ensureDirectory(path, privateMode)
}

/**
 * Removes a path at once by renaming it into the trash. A detached process empties the trash, including what an earlier
 * one left.
 */
export function discard(root: string, path: string): void {
  const trash = `${root}/.trash`
  ensureDirectories(root, trash)
  try {
    renameSync(path, `${trash}/${randomBytes(8).toString('hex')}`)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
  if (readdirSync(trash).length > 0) emptyTrash(trash)
}

function emptyTrash(directory: string): void {
  const child = spawn('nice', ['-n', '19', 'find', directory, '-mindepth', '1', '-delete'], {
    detached: true,
    stdio: 'ignore',
    env: baseEnvironment,
    cwd: '/',
  })
  child.on('error', () => undefined)
  child.unref()
}
