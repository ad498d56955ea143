import type { Readable } from 'node:stream'
import { BoxFileError } from '../../drivers/box/driver.ts'
import { type BoxHelper, BoxUnavailable } from '../../drivers/box/enter/helper.ts'
import { pourInto, startFileHelper } from '../../drivers/box/file/file.ts'
import { boxSpec } from '../../drivers/box/spec.ts'
import { badRequest, unavailable } from '../../model/errors.ts'
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
import { takeTurn } from './file-turn.ts'
import { getSandbox, wake } from './sandbox.ts'

export interface FilePlace {
  path: string
  workingDir?: string
}

/** A client that sends nothing for this long has gone. */
const idleSeconds = 60
const maxListed = 100_000
/** However many of them a pattern leaves out. */
const maxVisited = 1_000_000
/** How many paths an answer names; it counts all. */
const maxNamed = 10_000

function placeOf({ path, workingDir }: FilePlace): string {
  return resolvePath(path, workingDir)
}

interface Work {
  helper: BoxHelper
  end(): void
}

/** A helper inside the sandbox, which is started for it. Whoever gets it ends it. */
async function start(ctx: LiveContext, known: Sandbox, ...words: string[]): Promise<Work> {
  const sandbox = await wake(ctx, known)
  const giveBack = await takeTurn(sandbox.id)
  try {
    const helper = startFileHelper(ctx.boxes, boxSpec(sandbox), ...words)
    const end = () => {
      helper.end()
      giveBack()
    }
    return { helper, end }
  } catch (error) {
    giveBack()
    throw error
  }
}

/** What a helper failed with, in the words of a refusal. */
export function asFileRefusal(error: unknown): unknown {
  if (error instanceof BoxFileError) return fileError(error.code, error.path, error.why)
  if (error instanceof BoxUnavailable) return unavailable(error.message)
  return error
}

async function refused<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer
  } catch (error) {
    throw asFileRefusal(error)
  }
}

export interface OpenFile {
  /** Undefined for files of the kernel, which do not know it. */
  size: number | undefined
  mode: number
  modifiedAt: FileEntry['modifiedAt']
  /** What was asked for; undefined means all of it. */
  range: ByteRange | undefined
  /** Throws when the file has become shorter meanwhile. */
  bytes(): AsyncGenerator<Buffer>
  close(): void
}

export async function openFile(
  ctx: LiveContext,
  name: string,
  place: FilePlace,
  ask: (size: number) => ByteRange | undefined = () => undefined,
): Promise<OpenFile> {
  const sandbox = await getSandbox(ctx, name, 'read')
  const { helper, end } = await start(ctx, sandbox, 'read', placeOf(place))
  try {
    const [, bytes, mode, seconds, nanoseconds] = await refused(helper.next())
    const size = Number(bytes) || undefined
    const range = size === undefined ? undefined : ask(size)
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
  if (length !== undefined && left > 0) throw new Error('the file became shorter while it was read')
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
  place: FilePlace,
  body: Readable,
  options: { mode?: string; mkdirParents: boolean },
): Promise<WrittenFile> {
  const sandbox = await getSandbox(ctx, name, 'write')
  const path = placeOf(place)
  const mode = options.mode === undefined ? '' : String(parseMode(options.mode))
  const { helper, end } = await start(ctx, sandbox, 'write', path, mode, options.mkdirParents ? '1' : '')
  const idle = setTimeout(() => body.destroy(new Error('the client sends nothing')), idleSeconds * 1000)
  // What is cut off is undone by the helper, which says so.
  pourInto(helper, body, () => idle.refresh()).catch(() => helper.input.destroy())
  try {
    const [, before, size, written] = await refused(helper.next('forever'))
    return { path, size: Number(size), mode: renderMode(Number(written)), isNew: before === 'new' }
  } finally {
    clearTimeout(idle)
    end()
  }
}

export interface FileListing {
  path: string
  /** In the order of their names, directories before what is in them. */
  entries: AsyncGenerator<FileEntry>
  /** Once they are read: there was more than is listed. */
  isCut(): boolean
}

export async function listFiles(
  ctx: LiveContext,
  name: string,
  place: FilePlace,
  options: { recursive: boolean; pattern?: string },
): Promise<FileListing> {
  const sandbox = await getSandbox(ctx, name, 'read')
  const path = placeOf(place)
  const words = ['list', path, options.recursive ? '1' : '', String(maxVisited)]
  const { helper, end } = await start(ctx, sandbox, ...words)
  let isCut = false
  async function* entries(): AsyncGenerator<FileEntry> {
    const fits = options.pattern ? filePattern(options.pattern) : () => true
    let count = 0
    try {
      for (let words = await helper.next(); words[0] !== 'done'; words = await helper.next()) {
        if (words[0] === 'more') isCut = true
        if (words[0] !== 'entry') continue
        const entry = entryOf(words)
        if (entry.path !== path && !fits(entry.path.slice(path === '/' ? 1 : path.length + 1))) continue
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
    await refused(helper.next())
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

/** Runs an operation to its end. The records of each kind are counted, and the first of them kept. */
async function runWhole(ctx: LiveContext, sandbox: Sandbox, kind: string, words: string[]) {
  const { helper, end } = await start(ctx, sandbox, ...words)
  const named: string[][] = []
  const skipped: string[] = []
  let [count, bytes] = [0, 0]
  try {
    for (;;) {
      const [what, ...rest] = await refused(helper.next())
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

export async function deleteFile(ctx: LiveContext, name: string, place: FilePlace, options: { recursive: boolean }) {
  const sandbox = await getSandbox(ctx, name, 'write')
  const path = placeOf(place)
  if (path === '/') throw fileError('EINVAL', path, 'the root of a sandbox cannot be deleted; delete the sandbox')
  const { named, count } = await runWhole(ctx, sandbox, 'deleted', ['delete', path, options.recursive ? '1' : ''])
  return { deleted: named.map(([each]) => each!), count }
}

export async function renameFile(ctx: LiveContext, name: string, command: RenameFile) {
  const sandbox = await getSandbox(ctx, name, 'write')
  const source = resolvePath(command.source, command.workingDir, 'source')
  const dest = resolvePath(command.dest, command.workingDir, 'dest')
  await runWhole(ctx, sandbox, 'renamed', ['rename', source, dest])
  return { source, dest }
}

export async function copyFile(ctx: LiveContext, name: string, command: CopyFile) {
  const sandbox = await getSandbox(ctx, name, 'write')
  const source = resolvePath(command.source, command.workingDir, 'source')
  const dest = resolvePath(command.dest, command.workingDir, 'dest')
  const words = ['copy', source, dest, command.recursive ? '1' : '', command.preserveAttrs ? '1' : '']
  const { named, count, bytes, skipped } = await runWhole(ctx, sandbox, 'copied', words)
  const copied = named.map(([from, to]) => ({ source: from!, dest: to! }))
  return { copied, count, totalBytes: bytes, ...(skipped.length > 0 ? { skipped } : {}) }
}

export async function chmodFile(ctx: LiveContext, name: string, command: ChmodFile) {
  const sandbox = await getSandbox(ctx, name, 'write')
  const mode = parseMode(command.mode)
  const words = ['chmod', placeOf(command), String(mode), command.recursive ? '1' : '']
  const { named, count } = await runWhole(ctx, sandbox, 'changed', words)
  return { affected: named.map(([path]) => ({ path: path!, mode: renderMode(mode) })), count }
}

export async function chownFile(ctx: LiveContext, name: string, command: ChownFile) {
  const sandbox = await getSandbox(ctx, name, 'write')
  const { uid, gid } = command
  if (uid === undefined && gid === undefined) throw badRequest('uid or gid is required')
  const owners = [ownerWord('uid', uid), ownerWord('gid', gid)]
  const words = ['chown', placeOf(command), ...owners, command.recursive ? '1' : '']
  const { named, count } = await runWhole(ctx, sandbox, 'changed', words)
  return { affected: named.map(([path]) => ({ path: path!, ...defined({ uid, gid }) })), count }
}

/** A name that holds what parts words, or what parts the fields of a user, names nobody. */
function ownerWord(field: string, owner: number | string | undefined): string {
  if (owner === '') throw badRequest(`${field} is empty`)
  const word = String(owner ?? '')
  if (/[\0:\n]/.test(word) || word.length > 255) throw badRequest(`${field} is not a name`)
  return word
}

function defined<T extends object>(fields: T): Partial<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Partial<T>
}
