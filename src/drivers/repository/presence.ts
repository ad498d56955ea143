// Tells files that are lost from a repository that is not there, such as one that is not mounted.
import { lstat } from 'node:fs/promises'
import { WalFileError } from './driver.ts'

/** Errors of a file itself. Others, such as a lack of memory or a lost connection, say nothing about it. */
const fileErrors = ['EACCES', 'EIO', 'EISDIR', 'ELOOP', 'ENOENT', 'ENOTDIR', 'ENXIO', 'EUCLEAN']

export async function findMissingDirectory(parent: string, ...names: string[]): Promise<string | undefined> {
  if ((await kindOf(parent)) !== 'directory') throw notMounted(parent)
  let path = parent
  for (const name of names) {
    path += `/${name}`
    const kind = await kindOf(path)
    if (kind === undefined) return 'its directory in the repository is gone'
    if (kind !== 'directory') return `${kind} is in place of its directory in the repository`
  }
  return undefined
}

async function kindOf(path: string): Promise<string | undefined> {
  try {
    const found = await lstat(path)
    if (found.isDirectory()) return 'directory'
    return found.isSymbolicLink() ? 'a symbolic link' : found.isFile() ? 'a file' : 'a special file'
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException
    if (code === 'ENOENT' || code === 'ENOTDIR') return undefined
    if (fileErrors.includes(code)) return `an unreadable entry (${code})`
    throw error
  }
}

export function notMounted(directory: string): Error {
  return new Error(`the repository has no ${directory}; is it mounted?`)
}

export function isFileError(error: unknown): boolean {
  return fileErrors.includes((error as NodeJS.ErrnoException).code ?? '')
}

/** Turns an error about a WAL file into one that names it; returns other errors unchanged. */
export function walFileError(file: string, subject: string, error: unknown): unknown {
  if (error instanceof WalFileError) return error
  if (!isFileError(error)) return error
  const { code } = error as NodeJS.ErrnoException
  if (code === 'ENOENT') return new WalFileError('missing', file, `${subject} is missing from its archive`, error)
  return new WalFileError('damaged', file, `${subject} cannot be read: ${code}`, error)
}
