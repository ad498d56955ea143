// What the platform makes on disk is made beside its place under a fresh name and renamed into it, so that a name
// always stands for something whole, also after a crash and while another process makes the same.
import { randomBytes } from 'node:crypto'
import { chmodSync, chownSync, mkdirSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { readdir, rm, stat } from 'node:fs/promises'
import { dirname } from 'node:path'
import { readTextIfPresent } from './file.ts'

const mark = '.new~'

export interface Ownership {
  mode: number
  uid?: number | undefined
}

export function freshName(directory: string): string {
  return `${directory}/${mark}${randomBytes(6).toString('hex')}`
}

// Making anything takes seconds at most. What nobody touched for an hour was left by a process that was killed. The
// time of the last change of the entry itself, because a copy has the time of modification of its original.
export async function removeAbandoned(directory: string, olderThanMs = 3_600_000): Promise<void> {
  for (const entry of (await readdir(directory)).filter((name) => name.startsWith(mark))) {
    const found = await stat(`${directory}/${entry}`).catch(() => undefined)
    if (found && Date.now() - found.ctimeMs >= olderThanMs)
      await rm(`${directory}/${entry}`, { recursive: true, force: true })
  }
}

export function ensureDirectory(path: string, { mode, uid }: Ownership): void {
  mkdirSync(path, { recursive: true })
  const found = statSync(path)
  // Not through mkdir, whose mode the umask narrows.
  if ((found.mode & 0o777) !== mode) chmodSync(path, mode)
  if (uid !== undefined && found.uid !== uid) chownSync(path, uid, uid)
}

/** True when the file was not there with this content and this owner before. */
export function ensureFile(file: string, content: string, ownership: Ownership): boolean {
  if (isFileWith(file, content, ownership)) return false
  const fresh = freshName(dirname(file))
  try {
    writeFileSync(fresh, content, { flag: 'wx', mode: 0o600 })
    if (ownership.uid !== undefined) chownSync(fresh, ownership.uid, ownership.uid)
    chmodSync(fresh, ownership.mode)
    renameSync(fresh, file)
  } catch (error) {
    rmSync(fresh, { force: true })
    throw error
  }
  return true
}

export function isFileWith(file: string, content: string, { mode, uid }: Ownership): boolean {
  const found = statSync(file, { throwIfNoEntry: false })
  if (found === undefined || (found.mode & 0o777) !== mode) return false
  if (uid !== undefined && found.uid !== uid) return false
  return readTextIfPresent(file) === content
}
