import { randomBytes } from 'node:crypto'
import { closeSync, fsyncSync, linkSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'

export function readIfPresent(file: string): Buffer | undefined {
  try {
    return readFileSync(file)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

export function readTextIfPresent(file: string): string | undefined {
  return readIfPresent(file)?.toString()
}

/** Returns the lines of a file, none if it cannot be read for any reason. */
export function readLinesIfPossible(file: string): string[] {
  try {
    return readFileSync(file, 'utf8').trimEnd().split('\n')
  } catch {
    return []
  }
}

/**
 * Creates the file by a hard link: of concurrent processes the first one wins, and readers never see a partial file.
 */
export function readOrCreate(file: string, make: () => string | Buffer): Buffer {
  const present = readIfPresent(file)
  if (present !== undefined) return present
  const fresh = `${dirname(file)}/.new~${randomBytes(6).toString('hex')}`
  writeDurably(fresh, make())
  try {
    linkSync(fresh, file)
    syncDirectory(dirname(file))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw new Error(`create ${file}`, { cause: error })
  } finally {
    rmSync(fresh, { force: true })
  }
  return readFileSync(file)
}

/** Replaces a file that only its owner may read. The new content is complete and on disk when this returns. */
export function replaceFile(file: string, content: string): void {
  const fresh = `${dirname(file)}/.new~${randomBytes(6).toString('hex')}`
  try {
    writeDurably(fresh, content)
    renameSync(fresh, file)
    syncDirectory(dirname(file))
  } catch (cause) {
    rmSync(fresh, { force: true })
    throw new Error(`replace ${file}`, { cause })
  }
}

function writeDurably(file: string, content: string | Buffer): void {
  const descriptor = openSync(file, 'wx', 0o600)
  try {
    writeFileSync(descriptor, content)
    fsyncSync(descriptor)
  } finally {
    closeSync(descriptor)
  }
}

function syncDirectory(path: string): void {
  const descriptor = openSync(path, 'r')
  fsyncSync(descriptor)
  closeSync(descriptor)
}
