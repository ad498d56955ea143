// Unpacks a tar archive from a sandbox. The archive is not trusted: paths that leave the target directory are rejected,
// symbolic links are created last so that no file is written through one, and devices, owners and special permission bits
// are ignored.
import { link, lstat, mkdir, open, rm, symlink } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { CommandError } from '../errors.ts'

export interface Unpacked {
  count: number
  /** Paths of entries that are neither files, directories nor links. */
  skipped: string[]
}

interface Entry {
  path: string
  type: string
  mode: number
  size: number
  modifiedAt: number
  target: string
}

const blockBytes = 512
const entryTypes = {
  file: '0',
  hardLink: '1',
  symlink: '2',
  directory: '5',
  longTarget: 'K',
  longPath: 'L',
  extended: 'x',
}
/** Far above the longest path of any system. */
const maxNameBytes = 1024 * 1024

export async function unpack(archive: AsyncIterable<Buffer>, directory: string): Promise<Unpacked> {
  const reader = new ArchiveReader(archive)
  const target = new TargetDirectory(directory)
  const links: Entry[] = []
  const skipped: string[] = []
  let count = 0
  await target.ensureDirectory('')
  for (let entry = await reader.next(); entry; entry = await reader.next()) {
    if (entry.type === entryTypes.directory) await target.ensureDirectory(entry.path)
    else if (entry.type === entryTypes.file) await target.writeFile(entry, reader.contents())
    else if (entry.type === entryTypes.hardLink) await target.writeLink(entry)
    else if (entry.type === entryTypes.symlink) links.push(entry)
    else skipped.push(entry.path)
    if (entry.type === entryTypes.file || entry.type === entryTypes.hardLink) count++
  }
  for (const entry of links) await target.writeSymlink(entry)
  return { count: count + links.length, skipped }
}

/** Normalizes a path of the archive and rejects one that leaves the target directory. */
export function safePath(path: string): string {
  const parts = path.split('/').filter((part) => part !== '' && part !== '.')
  if (parts.includes('..') || path.includes('\0'))
    throw new CommandError(`the archive contains the unsafe path ${path}`)
  return parts.join('/')
}

class TargetDirectory {
  readonly #root: string
  /** Paths that are known to be directories, not symbolic links to directories. */
  readonly #checked = new Set<string>()

  constructor(root: string) {
    this.#root = root
  }

  async ensureDirectory(path: string): Promise<void> {
    if (this.#checked.has(path)) return
    if (path === '') await mkdir(this.#root, { recursive: true })
    else {
      await this.ensureDirectory(parentOf(path))
      await this.#makeDirectory(join(this.#root, path))
    }
    this.#checked.add(path)
  }

  async #makeDirectory(path: string): Promise<void> {
    const found = await lstat(path).catch(() => undefined)
    if (found?.isDirectory()) return
    if (found) await rm(path)
    await mkdir(path)
  }

  async writeFile({ path, mode, modifiedAt }: Entry, contents: AsyncIterable<Buffer>): Promise<void> {
    const file = await open(await this.#preparePath(path), 'wx', mode & 0o777)
    try {
      for await (const chunk of contents) await file.writeFile(chunk)
      await file.utimes(modifiedAt, modifiedAt)
    } finally {
      await file.close()
    }
  }

  /** The target of a hard link must be a file that was unpacked before. */
  async writeLink({ path, target }: Entry): Promise<void> {
    const source = safePath(target)
    await this.ensureDirectory(parentOf(source))
    const found = await lstat(join(this.#root, source)).catch(() => undefined)
    if (!found?.isFile()) throw new CommandError(`the archive links ${path} to ${target}, which it does not contain`)
    await link(join(this.#root, source), await this.#preparePath(path))
  }

  async writeSymlink({ path, target }: Entry): Promise<void> {
    await symlink(target, await this.#preparePath(path))
  }

  /** Creates the parent directory and removes an existing file at the path. */
  async #preparePath(path: string): Promise<string> {
    if (path === '') throw new CommandError('the archive contains a file without a name')
    await this.ensureDirectory(parentOf(path))
    const target = join(this.#root, path)
    await rm(target, { force: true })
    return target
  }
}

function parentOf(path: string): string {
  const parent = dirname(path)
  return parent === '.' ? '' : parent
}

/** Reads the ustar, GNU and pax formats. */
class ArchiveReader {
  readonly #chunks: AsyncIterator<Buffer>
  #buffer: Buffer = Buffer.alloc(0)
  /** Unread bytes of the current entry. `#padding` is the rest of its last block. */
  #remaining = 0
  #padding = 0

  constructor(archive: AsyncIterable<Buffer>) {
    this.#chunks = archive[Symbol.asyncIterator]()
  }

  /** Returns the next entry, or undefined at the end. Skips unread contents of the previous entry. */
  async next(): Promise<Entry | undefined> {
    const long: { path?: string; target?: string; size?: number } = {}
    for (;;) {
      for await (const _ of this.contents());
      const block = await this.#readExactly(blockBytes)
      if (block === undefined || block.every((byte) => byte === 0)) return undefined
      const entry = readHeader(block)
      this.#remaining = long.size ?? entry.size
      this.#padding = (blockBytes - (this.#remaining % blockBytes)) % blockBytes
      if (entry.type === entryTypes.longPath) long.path = readText(await this.#readName())
      else if (entry.type === entryTypes.longTarget) long.target = readText(await this.#readName())
      else if (entry.type === entryTypes.extended) Object.assign(long, readExtended(await this.#readName()))
      else if (entry.type !== 'g') return applyLongNames(entry, long)
    }
  }

  /** Yields the contents of the current entry. */
  async *contents(): AsyncGenerator<Buffer> {
    while (this.#remaining > 0) {
      const chunk = await this.#read(this.#remaining)
      this.#remaining -= chunk.length
      yield chunk
    }
    if (this.#padding > 0) await this.#readExactly(this.#padding)
    this.#padding = 0
  }

  async #readName(): Promise<Buffer> {
    if (this.#remaining > maxNameBytes) throw new CommandError('the archive contains a name that is too long')
    const chunks: Buffer[] = []
    for await (const chunk of this.contents()) chunks.push(chunk)
    return Buffer.concat(chunks)
  }

  async #read(maxBytes: number): Promise<Buffer> {
    if (this.#buffer.length === 0 && !(await this.#fill())) throw new CommandError('the archive is truncated')
    const chunk = this.#buffer.subarray(0, maxBytes)
    this.#buffer = this.#buffer.subarray(chunk.length)
    return chunk
  }

  /** Returns undefined at the end of the archive. */
  async #readExactly(bytes: number): Promise<Buffer | undefined> {
    while (this.#buffer.length < bytes) {
      if (await this.#fill()) continue
      if (this.#buffer.length === 0) return undefined
      throw new CommandError('the archive is truncated')
    }
    return this.#read(bytes)
  }

  async #fill(): Promise<boolean> {
    const { value, done } = await this.#chunks.next()
    if (done) return false
    this.#buffer = this.#buffer.length === 0 ? value : Buffer.concat([this.#buffer, value])
    return true
  }
}

function readHeader(block: Buffer): Entry {
  if (checksum(block) !== readNumber(block, 148, 8)) throw new CommandError('not a valid tar archive')
  const isUstar = block.toString('latin1', 257, 263) === 'ustar\0'
  const prefix = isUstar ? readText(block.subarray(345, 500)) : ''
  const name = readText(block.subarray(0, 100))
  const type = String.fromCharCode(block[156]!)
  return {
    path: prefix ? `${prefix}/${name}` : name,
    type: type === '\0' || type === '7' ? entryTypes.file : type,
    mode: readNumber(block, 100, 8),
    size: readNumber(block, 124, 12),
    modifiedAt: readNumber(block, 136, 12),
    target: readText(block.subarray(157, 257)),
  }
}

function applyLongNames(entry: Entry, long: { path?: string; target?: string }): Entry {
  const { path = entry.path, target = entry.target } = long
  return { ...entry, target, path: safePath(path) }
}

/** Reads octal digits, or the binary form for large numbers, which has the highest bit set. */
function readNumber(block: Buffer, at: number, length: number): number {
  if (block[at]! & 0x80) return block.readUIntBE(at + length - 6, 6)
  return Number.parseInt(readText(block.subarray(at, at + length)).trim() || '0', 8)
}

function checksum(block: Buffer): number {
  let sum = 0
  for (let i = 0; i < blockBytes; i++) sum += i >= 148 && i < 156 ? 0x20 : block[i]!
  return sum
}

/** Reads pax records of the form `<length> <key>=<value>`. */
function readExtended(data: Buffer): { path?: string; target?: string; size?: number } {
  const found: { path?: string; target?: string; size?: number } = {}
  for (let at = 0; at < data.length; ) {
    const length = Number.parseInt(data.toString('latin1', at, at + 10), 10)
    if (!(length > 0)) break
    const [, key, value = ''] = /^\d+ ([^=]*)=(.*)\n$/s.exec(data.toString('utf8', at, at + length)) ?? []
    if (key === 'path') found.path = value
    if (key === 'linkpath') found.target = value
    if (key === 'size') found.size = Number(value)
    at += length
  }
  return found
}

function readText(bytes: Buffer): string {
  const end = bytes.indexOf(0)
  return bytes.toString('utf8', 0, end < 0 ? bytes.length : end)
}
