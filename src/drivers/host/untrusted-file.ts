// Opens files below a directory that a tenant can write. A tenant can replace any name there at any moment with a link, a
// named pipe, a device, a directory or a huge file. So no component below the root is followed if it is a link, a file is
// opened only after its type is known, without blocking, and the bytes read are bounded.
//
// Each name is first opened with O_PATH, which has no effect on a pipe or a device, and then through /proc/self/fd, which
// refers to the same inode whatever happens to the name. O_NONBLOCK also keeps a file lease of the tenant, which delays
// other opens for up to 45 s, from blocking this process.
import {
  chmodSync,
  chownSync,
  closeSync,
  constants,
  fstatSync,
  mkdirSync,
  opendirSync,
  openSync,
  readSync,
  type Stats,
} from 'node:fs'
import { basename, dirname } from 'node:path'
import type { Ownership } from './atomic-file.ts'

/** Node does not export it. The value is the same on x86-64 and arm64. */
const O_PATH = 0o10000000
const { O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants

/**
 * Returns the content of a regular file. Undefined if there is none, if it or a directory on the way is anything else, or
 * if it is larger than `maxBytes`. The root is trusted; the path is relative to it.
 */
export function readUntrustedFile(root: string, path: string, maxBytes: number): Buffer | undefined {
  const descriptor = openUntrustedFile(root, path)
  if (descriptor === undefined) return undefined
  try {
    if (fstatSync(descriptor).size > maxBytes) return undefined
    const bytes = readUpTo(descriptor, maxBytes + 1)
    return bytes.length > maxBytes ? undefined : bytes
  } finally {
    closeSync(descriptor)
  }
}

/** Returns a descriptor for reading a regular file, which the caller closes. Undefined if there is no such file. */
export function openUntrustedFile(root: string, path: string): number | undefined {
  return withEntry(root, path, (entry, found) =>
    found.isFile() ? tryOpen(`/proc/self/fd/${entry}`, O_RDONLY | O_NONBLOCK) : undefined,
  )
}

/** Returns a descriptor for writing to a named pipe, which the caller closes. Undefined if it has no reader. */
export function openUntrustedPipe(root: string, path: string): number | undefined {
  return withEntry(root, path, (entry, found) =>
    found.isFIFO() ? tryOpen(`/proc/self/fd/${entry}`, O_WRONLY | O_NONBLOCK) : undefined,
  )
}

/** Returns what a name refers to, which is the link itself for a link. */
export function inspectUntrustedFile(root: string, path: string): Stats | undefined {
  return withEntry(root, path, (_, found) => found)
}

/** Returns up to `maxEntries` names in a directory, none if it is not a directory. */
export function listUntrustedDirectory(root: string, path: string, maxEntries: number): string[] {
  return withUntrustedDirectory(root, path, (directory) => readNames(directory, maxEntries)) ?? []
}

/**
 * Calls a function with a path that leads to this very directory until the function returns, also if the tenant renames
 * or replaces it meanwhile. Undefined if it is not a directory.
 */
export function withUntrustedDirectory<T>(root: string, path: string, use: (path: string) => T): T | undefined {
  return withEntry(root, path, (entry, found) => (found.isDirectory() ? use(`/proc/self/fd/${entry}`) : undefined))
}

/** Creates the last directory of a path unless it exists. Throws if anything else has its name. */
export function ensureUntrustedDirectory(root: string, path: string, { mode, uid, gid = uid }: Ownership): void {
  const make = (parent: string) => {
    try {
      mkdirSync(`${parent}/${basename(path)}`, { mode: 0o700 })
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
    }
    return true
  }
  const hasParent = dirname(path) === '.' ? make(root) : withUntrustedDirectory(root, dirname(path), make)
  const isDone = withUntrustedDirectory(root, path, (directory) => {
    if (uid !== undefined) chownSync(directory, uid, gid!)
    chmodSync(directory, mode)
    return true
  })
  if (!hasParent || !isDone) throw new Error(`${root}/${path} is not a directory`)
}

function withEntry<T>(root: string, path: string, use: (descriptor: number, found: Stats) => T): T | undefined {
  const entry = openEntry(root, path)
  if (entry === undefined) return undefined
  try {
    return use(entry, fstatSync(entry))
  } finally {
    closeSync(entry)
  }
}

/** Opens the last component without following it, and those before it only if they are directories. */
function openEntry(root: string, path: string): number | undefined {
  const names = path.split('/')
  if (names.some((name) => name === '' || name === '.' || name === '..' || name.includes('\0')))
    throw new Error(`not a path below a directory: ${JSON.stringify(path)}`)
  const last = names.pop()!
  let directory = tryOpen(root, O_PATH | O_DIRECTORY)
  for (const name of names) {
    if (directory === undefined) return undefined
    directory = openAt(directory, name, O_PATH | O_DIRECTORY | O_NOFOLLOW)
  }
  return directory === undefined ? undefined : openAt(directory, last, O_PATH | O_NOFOLLOW)
}

/** Closes the directory. */
function openAt(directory: number, name: string, flags: number): number | undefined {
  try {
    return tryOpen(`/proc/self/fd/${directory}/${name}`, flags)
  } finally {
    closeSync(directory)
  }
}

/** The errors that a tenant can cause: a name that is absent, of another type, too long, unreadable or leased. */
const expectedErrors = ['ENOENT', 'ENOTDIR', 'ELOOP', 'ENAMETOOLONG', 'EACCES', 'EAGAIN', 'ENXIO']

function tryOpen(path: string, flags: number): number | undefined {
  try {
    return openSync(path, flags)
  } catch (error) {
    if (expectedErrors.includes((error as NodeJS.ErrnoException).code ?? '')) return undefined
    throw error
  }
}

function readUpTo(descriptor: number, bytes: number): Buffer {
  const chunks: Buffer[] = []
  for (let left = bytes; left > 0; ) {
    const chunk = Buffer.allocUnsafe(Math.min(left, 64 * 1024))
    const count = readSync(descriptor, chunk, 0, chunk.length, null)
    if (count === 0) break
    chunks.push(chunk.subarray(0, count))
    left -= count
  }
  return Buffer.concat(chunks)
}

function readNames(directory: string, maxEntries: number): string[] {
  const names: string[] = []
  const entries = opendirSync(directory)
  try {
    while (names.length < maxEntries) {
      const entry = entries.readSync()
      if (!entry) break
      names.push(entry.name)
    }
  } finally {
    entries.closeSync()
  }
  return names
}
