// Files of s6-log. It writes to `current` and renames it when it is full; the names of full files sort by age. The
// directories belong to the box, so links are not followed and sizes are bounded.
import { closeSync, constants, fstatSync, opendirSync, openSync, read } from 'node:fs'
import { promisify } from 'node:util'

const readAt = promisify(read)
const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK

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

export function openLogFile(path: string): LogFile | undefined {
  let descriptor: number
  try {
    descriptor = openSync(path, flags)
  } catch {
    return undefined
  }
  const found = fstatSync(descriptor)
  if (found.isFile()) return new LogFile(descriptor, found.ino)
  closeSync(descriptor)
  return undefined
}

/** s6-log never makes as many; a box that puts more there gets some of them ignored. */
const maxEntries = 1_000

/** The names of full files, oldest first. */
export function listFullFiles(directory: string): string[] {
  const names: string[] = []
  try {
    const entries = opendirSync(directory)
    try {
      for (let count = 0; count < maxEntries; count++) {
        const entry = entries.readSync()
        if (!entry) break
        if (/^@[0-9a-f]{24}\.[su]$/.test(entry.name)) names.push(entry.name)
      }
    } finally {
      entries.closeSync()
    }
  } catch {
    return [] // the directory does not exist yet
  }
  return names.sort()
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
