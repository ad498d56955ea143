// Files and directories are created under a temporary name in the same directory and renamed, so a name always refers
// to something complete, even after a crash or while another process creates the same thing.
import { randomBytes } from 'node:crypto'
import { chmodSync, chownSync, mkdirSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { readdir, rm, stat } from 'node:fs/promises'
import { dirname } from 'node:path'
import { readIfPresent } from './file.ts'

const temporaryPrefix = '.new~'

export interface Ownership {
  mode: number
  uid?: number | undefined
  /** By default the group with the number of the uid. */
  gid?: number | undefined
}

export function temporaryPath(directory: string): string {
  return `${directory}/${temporaryPrefix}${randomBytes(6).toString('hex')}`
}

/**
 * Deletes what killed processes left behind. Creating anything takes seconds, so an unchanged hour is enough. The age
 * is taken from the ctime, because a copy keeps the mtime of its original.
 */
export async function removeAbandonedFiles(directory: string, olderThanMs = 3_600_000): Promise<void> {
  for (const entry of (await readdir(directory)).filter((name) => name.startsWith(temporaryPrefix))) {
    const found = await stat(`${directory}/${entry}`).catch(() => undefined)
    if (found && Date.now() - found.ctimeMs >= olderThanMs)
      await rm(`${directory}/${entry}`, { recursive: true, force: true })
  }
}

export function ensureDirectory(path: string, { mode, uid, gid = uid }: Ownership): void {
  mkdirSync(path, { recursive: true })
  const found = statSync(path)
  // The umask would restrict a mode given to mkdir.
  if ((found.mode & 0o777) !== mode) chmodSync(path, mode)
  const owner = { uid: uid ?? found.uid, gid: gid ?? found.gid }
  if (found.uid !== owner.uid || found.gid !== owner.gid) chownSync(path, owner.uid, owner.gid)
}

/** Returns true if it wrote the file, false if the content, mode and owner were already right. */
export function ensureFile(file: string, content: string | Buffer, ownership: Ownership): boolean {
  if (fileMatches(file, content, ownership)) return false
  const fresh = temporaryPath(dirname(file))
  try {
    writeFileSync(fresh, content, { flag: 'wx', mode: 0o600 })
    if (ownership.uid !== undefined) chownSync(fresh, ownership.uid, ownership.gid ?? ownership.uid)
    chmodSync(fresh, ownership.mode)
    renameSync(fresh, file)
  } catch (error) {
    rmSync(fresh, { force: true })
    throw error
  }
  return true
}

export function fileMatches(file: string, content: string | Buffer, { mode, uid }: Ownership): boolean {
  const found = statSync(file, { throwIfNoEntry: false })
  if (found === undefined || (found.mode & 0o777) !== mode) return false
  if (uid !== undefined && found.uid !== uid) return false
  return readIfPresent(file)?.equals(Buffer.from(content)) ?? false
}
