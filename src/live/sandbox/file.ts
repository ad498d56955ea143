import { posix } from 'node:path'
import type { Readable } from 'node:stream'
import type { BoxHelper } from '../../drivers/box/driver.ts'
import { badRequest } from '../../model/errors.ts'
import {
  type ByteRange,
  type ChmodFile,
  type ChownFile,
  type CopyFile,
  type FileEntry,
  fileError,
  fileKind,
  parseMode,
  type RenameFile,
  renderMode,
  resolvePath,
} from '../../model/sandbox/file.ts'
import { filePattern } from '../../model/sandbox/file-pattern.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import type { LiveContext } from '../context.ts'
import { startFileWork, withFileErrors } from './file-helper.ts'
import { getSandbox } from './sandbox.ts'

export interface FileLocation {
  path: string
  workingDir?: string
}

/** An upload is aborted when the client sends nothing for this long. */
const idleSeconds = 60
const maxListed = 100_000
/** Bounds the work for a pattern that excludes most files. */
const maxVisited = 1_000_000
/** The number of paths in a response; the count includes all. */
const maxNamed = 10_000

function absolutePath({ path, workingDir }: FileLocation): string {
  return resolvePath(path, workingDir)
}

export interface OpenFile {
  /** Undefined for files of the kernel, which have no size. */
  size: number | undefined
  mode: number
  modifiedAt: FileEntry['modifiedAt']
  /** The requested range; undefined for the whole file. */
  range: ByteRange | undefined
  /** Throws when the file was truncated in the meantime. */
  bytes(): AsyncGenerator<Buffer>
  close(): void
}

export async function openFile(
  ctx: LiveContext,
  name: string,
  place: FileLocation,
  chooseRange: (size: number) => ByteRange | undefined = () => undefined,
): Promise<OpenFile> {
  const sandbox = await getSandbox(ctx, name, 'read')
  const { helper, end } = await startFileWork(ctx, sandbox, 'read', absolutePath(place))
  try {
    const [, bytes, mode, seconds, nanoseconds] = await withFileErrors(helper.next())
    const size = Number(bytes) || undefined
    const range = size === undefined ? undefined : chooseRange(size)
    return {
      size,
      mode: Number(mode),
      modifiedAt: { seconds: Number(seconds), nanoseconds: Number(nanoseconds) },
      range,
      bytes: () => readAll(helper, range ?? { from: 0, length: size }),
      close: end,
    }
  } catch (error) {
    end()
    throw error
  }
}

async function* readAll(helper: BoxHelper, { from, length }: { from: number; length: number | undefined }) {
  helper.send([String(from), length === undefined ? '' : String(length)])
  let left = length ?? Number.POSITIVE_INFINITY
  for await (const piece of helper.bytes()) {
    left -= piece.length
    yield piece
  }
  if (length !== undefined && left > 0) throw new Error('the file was truncated while it was read')
}

export interface WrittenFile {
  path: string
  size: number
  mode: string
  isNew: boolean
}

export async function writeFile(
  ctx: LiveContext,
  name: string,
  place: FileLocation,
  body: Readable,
  options: { mode?: string; mkdirParents: boolean },
): Promise<WrittenFile> {
  const sandbox = await getSandbox(ctx, name, 'write')
  const path = absolutePath(place)
  const mode = options.mode === undefined ? '' : String(parseMode(options.mode))
  const { helper, end } = await startFileWork(ctx, sandbox, 'write', path, mode, directoriesToCreate(path, options))
  const idle = setTimeout(() => body.destroy(new Error('upload timed out')), idleSeconds * 1000)
  // The helper removes an incomplete file and reports that.
  helper.sendBody(body, () => idle.refresh()).catch(() => helper.input.destroy())
  try {
    const [, before, size, written] = await withFileErrors(helper.next('forever'))
    return { path, size: Number(size), mode: renderMode(Number(written)), isNew: before === 'new' }
  } finally {
    clearTimeout(idle)
    end()
  }
}

/**
 * Clients without a call for `mkdir` write a placeholder and delete it. `mkdirParents=false` then means what `mkdir`
 * without `-p` does, so the directory of the placeholder is created, and its parents are not.
 */
function directoriesToCreate(path: string, { mkdirParents }: { mkdirParents: boolean }): 'all' | 'last' | 'none' {
  if (mkdirParents) return 'all'
  return posix.basename(path) === '.keep' ? 'last' : 'none'
}

export interface FileListing {
  path: string
  /** Sorted by name, each directory before its content. */
  entries: AsyncGenerator<FileEntry>
  /** True after reading all entries if the list is incomplete. */
  isCut(): boolean
}

export async function listFiles(
  ctx: LiveContext,
  name: string,
  place: FileLocation,
  options: { recursive: boolean; pattern?: string },
): Promise<FileListing> {
  const sandbox = await getSandbox(ctx, name, 'read')
  const path = absolutePath(place)
  const words = ['list', path, options.recursive ? '1' : '', String(maxVisited)]
  const { helper, end } = await startFileWork(ctx, sandbox, ...words)
  let isCut = false
  async function* entries(): AsyncGenerator<FileEntry> {
    const matches = options.pattern ? filePattern(options.pattern) : () => true
    let count = 0
    try {
      for (let words = await helper.next(); words[0] !== 'done'; words = await helper.next()) {
        if (words[0] === 'more') isCut = true
        if (words[0] !== 'entry') continue
        const entry = entryOf(words)
        if (entry.path !== path && !matches(entry.path.slice(path === '/' ? 1 : path.length + 1))) continue
        isCut ||= count === maxListed
        if (isCut) return
        count += 1
        yield entry
      }
    } finally {
      end()
    }
  }
  try {
    await withFileErrors(helper.next())
    return { path, entries: entries(), isCut: () => isCut }
  } catch (error) {
    end()
    throw error
  }
}

function entryOf([, path, mode, size, seconds, nanoseconds, uid, gid, target]: string[]): FileEntry {
  return {
    path: path!,
    kind: fileKind(Number(mode)),
    mode: Number(mode),
    size: Number(size),
    modifiedAt: { seconds: Number(seconds), nanoseconds: Number(nanoseconds) },
    uid: Number(uid),
    gid: Number(gid),
    target: target!,
  }
}

/** Runs an operation to its end. Counts the records of one kind and keeps the first of them. */
async function runToEnd(ctx: LiveContext, sandbox: Sandbox, kind: string, words: string[]) {
  const { helper, end } = await startFileWork(ctx, sandbox, ...words)
  const named: string[][] = []
  const skipped: string[] = []
  let [count, bytes] = [0, 0]
  try {
    for (;;) {
      const [what, ...rest] = await withFileErrors(helper.next())
      if (what === 'done') return { named, count, bytes, skipped }
      if (what === 'skipped' && skipped.length < maxNamed) skipped.push(rest[0]!)
      if (what !== kind) continue
      count += 1
      bytes += Number(rest[2] ?? 0)
      if (named.length < maxNamed) named.push(rest)
    }
  } finally {
    end()
  }
}

export async function deleteFile(ctx: LiveContext, name: string, place: FileLocation, options: { recursive: boolean }) {
  const sandbox = await getSandbox(ctx, name, 'write')
  const path = absolutePath(place)
  if (path === '/') throw fileError('EINVAL', path, 'the root of a sandbox cannot be deleted; delete the sandbox')
  const { named, count } = await runToEnd(ctx, sandbox, 'deleted', ['delete', path, options.recursive ? '1' : ''])
  return { deleted: named.map(([each]) => each!), count }
}

export async function renameFile(ctx: LiveContext, name: string, command: RenameFile) {
  const sandbox = await getSandbox(ctx, name, 'write')
  const source = resolvePath(command.source, command.workingDir, 'source')
  const dest = resolvePath(command.dest, command.workingDir, 'dest')
  await runToEnd(ctx, sandbox, 'renamed', ['rename', source, dest])
  return { source, dest }
}

export async function copyFile(ctx: LiveContext, name: string, command: CopyFile) {
  const sandbox = await getSandbox(ctx, name, 'write')
  const source = resolvePath(command.source, command.workingDir, 'source')
  const dest = resolvePath(command.dest, command.workingDir, 'dest')
  const words = ['copy', source, dest, command.recursive ? '1' : '', command.preserveAttrs ? '1' : '']
  const { named, count, bytes, skipped } = await runToEnd(ctx, sandbox, 'copied', words)
  const copied = named.map(([from, to]) => ({ source: from!, dest: to! }))
  return { copied, count, totalBytes: bytes, ...(skipped.length > 0 ? { skipped } : {}) }
}

export async function chmodFile(ctx: LiveContext, name: string, command: ChmodFile) {
  const sandbox = await getSandbox(ctx, name, 'write')
  const mode = parseMode(command.mode)
  const words = ['chmod', absolutePath(command), String(mode), command.recursive ? '1' : '']
  const { named, count } = await runToEnd(ctx, sandbox, 'changed', words)
  return { affected: named.map(([path]) => ({ path: path!, mode: renderMode(mode) })), count }
}

export async function chownFile(ctx: LiveContext, name: string, command: ChownFile) {
  const sandbox = await getSandbox(ctx, name, 'write')
  const { uid, gid } = command
  if (uid === undefined && gid === undefined) throw badRequest('uid or gid is required')
  const owners = [ownerWord('uid', uid), ownerWord('gid', gid)]
  const words = ['chown', absolutePath(command), ...owners, command.recursive ? '1' : '']
  const { named, count } = await runToEnd(ctx, sandbox, 'changed', words)
  return { affected: named.map(([path]) => ({ path: path!, ...defined({ uid, gid }) })), count }
}

/** Rejects names with separators of records or of /etc/passwd, which no user can have. */
function ownerWord(field: string, owner: number | string | undefined): string {
  if (owner === '') throw badRequest(`${field} is empty`)
  const word = String(owner ?? '')
  if (/[\0:\n]/.test(word) || word.length > 255) throw badRequest(`${field} is not a name`)
  return word
}

function defined<T extends object>(fields: T): Partial<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Partial<T>
}
