import { posix } from 'node:path'
import { type Static, Type } from 'typebox'
import { BerthError, badRequest, type ErrorCode } from '../errors.ts'

/** The kernel's PATH_MAX without the terminating NUL. */
const maxPathBytes = 4095

/**
 * Returns an absolute path without `.` and `..`. Symbolic links are not resolved: the path is used inside the sandbox,
 * where no link leads outside.
 */
export function resolvePath(path: string, workingDirectory = '/', field = 'path'): string {
  if (path === '') throw badRequest(`${field} is empty`)
  const resolved = posix.resolve('/', workingDirectory, path)
  if (resolved.includes('\0')) throw badRequest(`${field} contains a NUL byte`)
  if (Buffer.byteLength(resolved) > maxPathBytes) throw badRequest(`${field} is longer than ${maxPathBytes} bytes`)
  return resolved
}

export type FileKind = 'file' | 'directory' | 'symlink' | 'other'

export interface FileEntry {
  path: string
  kind: FileKind
  mode: number
  size: number
  modifiedAt: { seconds: number; nanoseconds: number }
  uid: number
  gid: number
  /** The target of a symbolic link. */
  target: string
}

const kinds = new Map<number, FileKind>([
  [0o100000, 'file'],
  [0o040000, 'directory'],
  [0o120000, 'symlink'],
])

export function fileKind(mode: number): FileKind {
  return kinds.get(mode & 0o170000) ?? 'other'
}

/** The mode as four octal digits. */
export function renderMode(mode: number): string {
  return (mode & 0o7777).toString(8).padStart(4, '0')
}

export function parseMode(text: string): number {
  const digits = /^(?:0o)?([0-7]{1,5})$/.exec(text)?.[1]
  const mode = digits === undefined ? Number.NaN : Number.parseInt(digits, 8)
  if (!(mode <= 0o7777)) throw badRequest('mode must be octal digits such as 0644')
  return mode
}

interface Meaning {
  kind: ErrorCode
  sentence: string
}

const meanings: Record<string, Meaning> = {
  ENOENT: { kind: 'not_found', sentence: 'no such file or directory' },
  EEXIST: { kind: 'conflict', sentence: 'it exists already' },
  ENOTEMPTY: { kind: 'conflict', sentence: 'the directory is not empty; "recursive" deletes what is in it, too' },
  EBUSY: { kind: 'conflict', sentence: 'it is in use by the system' },
  ETXTBSY: { kind: 'conflict', sentence: 'it is a program that is running' },
  ENOTDIR: { kind: 'bad_request', sentence: 'a part of the path is not a directory' },
  EISDIR: { kind: 'bad_request', sentence: 'it is a directory' },
  EINVAL: { kind: 'bad_request', sentence: 'this cannot be done with it' },
  ENAMETOOLONG: { kind: 'bad_request', sentence: 'a name is too long, or the tree too deep' },
  ELOOP: { kind: 'bad_request', sentence: 'too many links lead from one to the next' },
  ECANCELED: { kind: 'bad_request', sentence: 'the body ended too early' },
  ENXIO: { kind: 'bad_request', sentence: 'it is not a regular file' },
  EXDEV: { kind: 'bad_request', sentence: 'it cannot be moved to another filesystem' },
  EMLINK: { kind: 'bad_request', sentence: 'too many links to it' },
  EACCES: { kind: 'forbidden', sentence: 'permission denied' },
  EPERM: { kind: 'forbidden', sentence: 'operation not permitted' },
  EROFS: { kind: 'forbidden', sentence: 'read-only file system' },
  EFBIG: { kind: 'too_large', sentence: 'the file would be larger than the filesystem allows' },
  ENOSPC: { kind: 'no_space', sentence: 'the sandbox has no space left' },
  EDQUOT: { kind: 'no_space', sentence: 'the sandbox has no space left' },
  EMFILE: { kind: 'unavailable', sentence: 'too many files are open' },
  ENFILE: { kind: 'unavailable', sentence: 'too many files are open' },
  ENOMEM: { kind: 'unavailable', sentence: 'the sandbox has no memory left' },
}

/** Converts an errno from inside the sandbox; `why` replaces the standard sentence. */
export function fileError(code: string, path: string, why = ''): BerthError {
  const { kind, sentence } = meanings[code] ?? { kind: 'internal', sentence: `the system answered ${code}` }
  return new BerthError(kind, `${why || sentence}: ${path}`, { fields: { code, path } })
}

export interface ByteRange {
  from: number
  length: number
}

/** The requested byte range, with both ends included; undefined for the whole file. Only a single range is supported. */
export function requestedRange(size: number, query: { start?: number; end?: number }, header?: string) {
  const { start, end } = query
  if (start !== undefined || end !== undefined) return cutRange(size, start ?? 0, end ?? size - 1)
  const match = /^bytes=(\d{0,15})-(\d{0,15})$/.exec(header ?? '')
  if (!match || (match[1] === '' && match[2] === '')) return undefined
  if (match[1] === '') return cutRange(size, Math.max(0, size - Number(match[2])), size - 1)
  const last = match[2] === '' ? size - 1 : Number(match[2])
  // RFC 9110 says that an invalid range is ignored.
  if (last < Number(match[1]) && match[2] !== '') return undefined
  return cutRange(size, Number(match[1]), last)
}

function cutRange(size: number, first: number, last: number): ByteRange {
  const length = Math.min(last, size - 1) - first + 1
  if (first >= size || length <= 0) {
    throw new BerthError('range_not_satisfiable', `the file has ${size} bytes`, {
      headers: { 'content-range': `bytes */${size}` },
    })
  }
  return { from: first, length }
}

export function renderTime({ seconds, nanoseconds }: FileEntry['modifiedAt']): string {
  const whole = new Date(seconds * 1000)
  // A file's timestamp can be outside the range of RFC 3339.
  if (Number.isNaN(whole.getTime()) || whole.getUTCFullYear() > 9999 || whole.getUTCFullYear() < 0) {
    return '1970-01-01T00:00:00Z'
  }
  const fraction = nanoseconds === 0 ? '' : `.${String(nanoseconds).padStart(9, '0').replace(/0+$/, '')}`
  return `${whole.toISOString().slice(0, 19)}${fraction}Z`
}

const Path = (description: string) => Type.String({ description })
const WorkingDir = Type.Optional(Type.String({ description: 'The base of relative paths; `/` when omitted.' }))
const AsRoot = Type.Optional(
  Type.Boolean({ description: 'Accepted and ignored; operations always run as root inside the sandbox.' }),
)
const Recursive = Type.Optional(Type.Boolean({ description: 'Include everything below; `false` when omitted.' }))
const Owner = (what: string) =>
  Type.Optional(
    Type.Union([Type.Integer({ minimum: 0, maximum: 4_294_967_294 }), Type.String()], { description: what }),
  )

export const RenameFile = Type.Object(
  { source: Path('What to rename.'), dest: Path('Its new path.'), workingDir: WorkingDir, asRoot: AsRoot },
  { title: 'RenameFile' },
)
export type RenameFile = Static<typeof RenameFile>

export const CopyFile = Type.Object(
  {
    source: Path('What to copy.'),
    dest: Path('Where the copy is to be; a directory that is there already receives what is in the source.'),
    workingDir: WorkingDir,
    recursive: Recursive,
    preserveAttrs: Type.Optional(
      Type.Boolean({ description: 'Also copy the owner, the times and all bits of the mode.' }),
    ),
    asRoot: AsRoot,
  },
  { title: 'CopyFile' },
)
export type CopyFile = Static<typeof CopyFile>

export const ChmodFile = Type.Object(
  {
    path: Path('What to change.'),
    workingDir: WorkingDir,
    mode: Type.String({ description: 'Octal, such as `0755`.' }),
    recursive: Recursive,
    asRoot: AsRoot,
  },
  { title: 'ChmodFile' },
)
export type ChmodFile = Static<typeof ChmodFile>

export const ChownFile = Type.Object(
  {
    path: Path('What to change.'),
    workingDir: WorkingDir,
    uid: Owner('A number, or the name of a user inside. Unchanged when omitted.'),
    gid: Owner('A number, or the name of a group inside. Unchanged when omitted.'),
    recursive: Recursive,
    asRoot: AsRoot,
  },
  { title: 'ChownFile' },
)
export type ChownFile = Static<typeof ChownFile>
