// Files of s6-log. It writes to `current` and renames it when it is full; the names of full files sort by age. The
// directories belong to the box, so links are not followed and sizes are bounded.
import { closeSync, fstatSync, read } from 'node:fs'
import { promisify } from 'node:util'
import { listUntrustedDirectory, openUntrustedFile } from '../../host/untrusted-file.ts'

const readAt = promisify(read)

export const chunkBytes = 64 * 1024
/** The length of `2026-11-15 05:41:29.115451138` and two spaces. */
export const prefixBytes = 31
export const newline = 10

export class LogFile {
  readonly descriptor: number
  readonly inode: number

  constructor(descriptor: number, inode: number) {
    this.descriptor = descriptor
    this.inode = inode
  }

  size(): number {
    return fstatSync(this.descriptor).size
  }

  /** Reads up to a chunk. */
  async read(offset: number): Promise<Buffer> {
    const { bytesRead, buffer } = await readAt(this.descriptor, Buffer.allocUnsafe(chunkBytes), 0, chunkBytes, offset)
    return buffer.subarray(0, bytesRead)
  }

  close(): void {
    closeSync(this.descriptor)
  }
}

/** A position to read from. */
export interface LogPosition {
  file: LogFile
  offset: number
}

/** A directory of s6-log. The box may have replaced anything below the root. */
export interface LogDirectory {
  root: string
  path: string
}

export function openLogFile({ root, path }: LogDirectory, name: string): LogFile | undefined {
  const descriptor = openUntrustedFile(root, `${path}/${name}`)
  return descriptor === undefined ? undefined : new LogFile(descriptor, fstatSync(descriptor).ino)
}

/** s6-log never makes as many; a box that puts more there gets some of them ignored. */
const maxEntries = 1_000
const maxFullFiles = 16

/** The names of full files, oldest first. */
export function listFullFiles({ root, path }: LogDirectory): string[] {
  const names = listUntrustedDirectory(root, path, maxEntries)
  return names
    .filter((name) => /^@[0-9a-f]{24}\.[su]$/.test(name))
    .sort()
    .slice(-maxFullFiles)
}

/** Splits a line into the timestamp of s6-log and the text. Bytes that are not UTF-8 become U+FFFD. */
export function parseLine(bytes: Buffer): { timeMs: number; text: string } {
  const head = bytes.toString('latin1', 0, prefixBytes)
  if (!/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9} {2}$/.test(head)) return { timeMs: Date.now(), text: bytes.toString() }
  const time = Date.parse(`${head.slice(0, 10)}T${head.slice(11, 23)}Z`)
  return {
    timeMs: Number.isNaN(time) ? Date.now() : time + Number(head.slice(23, 29)) / 1e6,
    text: bytes.toString('utf8', prefixBytes),
  }
}
