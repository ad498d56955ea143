// Reads what a service printed. Each of its two streams is a directory in which s6-log writes `current` and renames it
// when it is full; the names of full files sort by age. The directories belong to the box: links are not followed.
import { closeSync, constants, fstatSync, opendirSync, openSync, read } from 'node:fs'
import { promisify } from 'node:util'
import { endMark } from './script.ts'

export type LogStream = 'stdout' | 'stderr'

export type LogItem =
  | { is: 'line'; stream: LogStream; timeMs: number; text: string }
  /** The process ended with this code; everything it printed to this stream comes before. */
  | { is: 'end'; stream: LogStream; code: number }
  /** The reader was so slow that files were deleted before it came to them. */
  | { is: 'gap'; stream: LogStream }

export interface ServiceLog {
  /** From the next line that is printed. */
  fromNow(): LogReader
  /** From the oldest line that is kept, or from so many lines before the end. */
  fromBefore(lines?: number): Promise<LogReader>
  /** From a little before what was printed at this time. */
  fromTime(timeMs: number): Promise<LogReader>
}

export interface LogReader {
  /** Lines of both streams by time, as many as there are now and at most about `bytes` long; none when there are none. */
  read(bytes?: number): Promise<LogItem[]>
  close(): void
}

const readAt = promisify(read)
const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK
const chunkBytes = 64 * 1024
/** Of `2026-11-15 05:41:29.115451138` and two spaces. */
const prefixBytes = 31
const newline = 10

export function openServiceLog(directory: string): ServiceLog {
  const sources = (['stdout', 'stderr'] as const).map((stream) => ({ stream, directory: `${directory}/${stream}` }))
  return {
    fromNow: () => merged(sources.map(({ stream, directory }) => followFromEnd(stream, directory))),
    async fromBefore(lines) {
      if (lines === undefined) return merged(sources.map((one) => new Follower(one.stream, one.directory)))
      const found = await Promise.all(sources.map((one) => findLast(one.directory, lines)))
      const skip = Math.max(0, found.reduce((sum, one) => sum + one.count, 0) - lines)
      const followers = sources.map((one, at) => new Follower(one.stream, one.directory, found[at]!.start))
      return merged(followers, skip)
    },
    async fromTime(timeMs) {
      const starts = await Promise.all(sources.map((one) => findTime(one.directory, timeMs)))
      return merged(sources.map((one, at) => new Follower(one.stream, one.directory, starts[at])))
    },
  }
}

function followFromEnd(stream: LogStream, directory: string): Follower {
  const current = openLogFile(`${directory}/current`)
  if (!current) return new Follower(stream, directory)
  const start = { file: current, offset: current.size() }
  return new Follower(stream, directory, start)
}

class LogFile {
  readonly descriptor: number
  readonly inode: number

  constructor(descriptor: number, inode: number) {
    this.descriptor = descriptor
    this.inode = inode
  }

  size(): number {
    return fstatSync(this.descriptor).size
  }

  close(): void {
    closeSync(this.descriptor)
  }
}

function openLogFile(path: string): LogFile | undefined {
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

/** More entries than s6-log ever makes: whatever else lies there is not ours to read. */
const mostEntries = 1_000

/** Names of full files, oldest first. */
function listFull(directory: string): string[] {
  const names: string[] = []
  try {
    const entries = opendirSync(directory)
    try {
      for (let count = 0; count < mostEntries; count++) {
        const entry = entries.readSync()
        if (!entry) break
        if (/^@[0-9a-f]{24}\.[su]$/.test(entry.name)) names.push(entry.name)
      }
    } finally {
      entries.closeSync()
    }
  } catch {
    return [] // not there yet
  }
  return names.sort()
}

interface Start {
  file: LogFile
  offset: number
}

/** One stream, line by line, over the change from one file to the next. */
class Follower {
  private readonly stream: LogStream
  private readonly directory: string
  private file: LogFile | undefined
  private offset = 0
  private pending = Buffer.alloc(0)
  private readonly items: LogItem[] = []
  private taken = 0
  /** An empty line is kept back until it is known whether it only stands before the note of an end. */
  private empty: LogItem | undefined

  constructor(stream: LogStream, directory: string, start?: Start) {
    this.stream = stream
    this.directory = directory
    this.file = start?.file
    this.offset = start?.offset ?? 0
  }

  /** The next item, if it is read already. */
  get next(): LogItem | undefined {
    return this.items[this.taken]
  }

  /** The same, after looking for it. */
  async fillUp(): Promise<LogItem | undefined> {
    while (this.next === undefined && (await this.fill()));
    return this.next
  }

  take(): LogItem {
    const item = this.items[this.taken++]!
    if (this.taken === this.items.length) {
      this.items.length = 0
      this.taken = 0
    }
    return item
  }

  close(): void {
    this.file?.close()
    this.file = undefined
  }

  /** False when there is nothing new. */
  private async fill(): Promise<boolean> {
    this.file ??= this.openOldest()
    if (!this.file) return false
    if (await this.readChunk()) return true
    const next = this.nextFile()
    if (!next) return this.flushEmpty()
    // It was written to until the moment it was replaced.
    if (await this.readChunk()) {
      next.close()
      return true
    }
    this.file.close()
    this.file = next
    this.offset = 0
    return true
  }

  private openOldest(): LogFile | undefined {
    const [oldest] = listFull(this.directory)
    return openLogFile(`${this.directory}/${oldest ?? 'current'}`)
  }

  /** The file after ours, if ours is complete. */
  private nextFile(): LogFile | undefined {
    const current = openLogFile(`${this.directory}/current`)
    if (!current) return undefined
    if (current.inode === this.file!.inode) {
      current.close()
      return undefined
    }
    const full = listFull(this.directory)
    const files = full.map((name) => openLogFile(`${this.directory}/${name}`)).filter((file) => file !== undefined)
    const ours = files.findIndex((file) => file.inode === this.file!.inode)
    // Ours is deleted when three newer ones are full, and by then others may have come and gone.
    if (ours === -1 && files.length >= 3) this.items.push({ is: 'gap', stream: this.stream })
    const [next = current] = [...files.slice(ours + 1)]
    for (const file of [...files, current]) if (file !== next) file.close()
    return next
  }

  private async readChunk(): Promise<boolean> {
    const file = this.file!
    if (file.size() <= this.offset) return false
    const { bytesRead, buffer } = await readAt(
      file.descriptor,
      Buffer.allocUnsafe(chunkBytes),
      0,
      chunkBytes,
      this.offset,
    )
    if (bytesRead === 0) return false
    this.offset += bytesRead
    this.split(
      this.pending.length === 0
        ? buffer.subarray(0, bytesRead)
        : Buffer.concat([this.pending, buffer.subarray(0, bytesRead)]),
    )
    return true
  }

  private split(bytes: Buffer): void {
    let from = 0
    for (let at = bytes.indexOf(newline); at !== -1; at = bytes.indexOf(newline, from)) {
      this.add(bytes.subarray(from, at))
      from = at + 1
    }
    // s6-log cuts lines at 8 KiB; a longer one is not from it.
    if (bytes.length - from > chunkBytes) {
      this.add(bytes.subarray(from))
      from = bytes.length
    }
    this.pending = Buffer.from(bytes.subarray(from))
  }

  private add(bytes: Buffer): void {
    const line = parseLine(bytes)
    const end = line.text.startsWith(endMark) ? /(\d{1,3})$/.exec(line.text) : null
    if (end) {
      this.empty = undefined
      this.items.push({ is: 'end', stream: this.stream, code: Number(end[1]) })
      return
    }
    this.flushEmpty()
    const item: LogItem = { is: 'line', stream: this.stream, ...line }
    if (line.text === '') this.empty = item
    else this.items.push(item)
  }

  private flushEmpty(): boolean {
    if (!this.empty) return false
    this.items.push(this.empty)
    this.empty = undefined
    return true
  }
}

/** Bytes that are no UTF-8 become U+FFFD. */
function parseLine(bytes: Buffer): { timeMs: number; text: string } {
  const head = bytes.toString('latin1', 0, prefixBytes)
  if (!/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9} {2}$/.test(head)) return { timeMs: Date.now(), text: bytes.toString() }
  const time = Date.parse(`${head.slice(0, 10)}T${head.slice(11, 23)}Z`)
  return {
    timeMs: Number.isNaN(time) ? Date.now() : time + Number(head.slice(23, 29)) / 1e6,
    text: bytes.toString('utf8', prefixBytes),
  }
}

function merged(followers: Follower[], skip = 0): LogReader {
  let left = skip
  return {
    async read(bytes = chunkBytes) {
      const items: LogItem[] = []
      // Looking for more costs more than a line does, so that a stream with nothing new is not asked again.
      const flowing = new Set(followers)
      for (let size = 0; size < bytes; ) {
        const next = await takeEarliest(flowing)
        if (!next) break
        if (next.is === 'line' && left > 0) left--
        else items.push(next)
        size += next.is === 'line' ? next.text.length + prefixBytes : 1
      }
      return items
    },
    close: () => {
      for (const follower of followers) follower.close()
    },
  }
}

async function takeEarliest(flowing: Set<Follower>): Promise<LogItem | undefined> {
  let first: { follower: Follower; timeMs: number } | undefined
  for (const follower of flowing) {
    const item = follower.next ?? (await follower.fillUp())
    if (!item) {
      flowing.delete(follower)
      continue
    }
    const timeMs = item.is === 'line' ? item.timeMs : 0
    if (!first || timeMs < first.timeMs) first = { follower, timeMs }
  }
  return first?.follower.take()
}

/** Where the last so many lines of a stream begin, and how many there are. */
async function findLast(directory: string, lines: number): Promise<{ start: Start | undefined; count: number }> {
  let count = 0
  let start: Start | undefined
  for (const name of [...listFull(directory), 'current'].reverse()) {
    const file = openLogFile(`${directory}/${name}`)
    if (!file) continue
    const offsets = (await findLines(file)).slice(-(lines - count))
    start?.file.close()
    start = { file, offset: offsets[0] ?? file.size() }
    count += offsets.length
    if (count >= lines) break
  }
  return { start, count }
}

/** Where a stream is to be read from for all lines after this time; undefined for the oldest. */
async function findTime(directory: string, timeMs: number): Promise<Start | undefined> {
  for (const name of [...listFull(directory), 'current'].reverse()) {
    const file = openLogFile(`${directory}/${name}`)
    const first = file && (await findLine(file, 0))
    if (file && first && first.timeMs <= timeMs) return { file, offset: await findOffset(file, timeMs) }
    file?.close()
  }
  return undefined
}

/** Less than a chunk before the first line after this time. Lines stand in the order of time. */
async function findOffset(file: LogFile, timeMs: number): Promise<number> {
  let low = 0
  for (let high = file.size(); high - low > chunkBytes; ) {
    const middle = Math.floor((low + high) / 2)
    const line = await findLine(file, middle)
    if (line && line.timeMs <= timeMs) low = line.offset
    else high = middle
  }
  return low
}

/** The first line that begins there or later. */
async function findLine(file: LogFile, from: number): Promise<{ offset: number; timeMs: number } | undefined> {
  const { bytesRead, buffer } = await readAt(file.descriptor, Buffer.allocUnsafe(chunkBytes), 0, chunkBytes, from)
  const bytes = buffer.subarray(0, bytesRead)
  const begin = from === 0 ? 0 : bytes.indexOf(newline) + 1
  if (bytes.length - begin < prefixBytes || (from > 0 && begin === 0)) return undefined
  return { offset: from + begin, timeMs: parseLine(bytes.subarray(begin, begin + prefixBytes)).timeMs }
}

/** A file of s6-log is not longer; of another one only the end is read. */
const mostFileBytes = 9 * 1024 * 1024

/** Where lines begin. Notes of an end, and the empty lines before them, are no lines. */
async function findLines(file: LogFile): Promise<number[]> {
  const offsets: number[] = []
  const buffer = Buffer.allocUnsafe(chunkBytes)
  let lastWasEmpty = false
  for (let at = Math.max(0, file.size() - mostFileBytes); ; ) {
    const { bytesRead } = await readAt(file.descriptor, buffer, 0, chunkBytes, at)
    const bytes = buffer.subarray(0, bytesRead)
    let from = 0
    for (let end = bytes.indexOf(newline); end !== -1; end = bytes.indexOf(newline, from)) {
      const first = bytes[from + prefixBytes]
      if (from + prefixBytes < end && first === endMark.charCodeAt(0)) {
        if (lastWasEmpty) offsets.pop()
        lastWasEmpty = false
      } else {
        offsets.push(at + from)
        lastWasEmpty = end - from === prefixBytes
      }
      from = end + 1
    }
    // The rest is a line that is not complete yet, or one that no s6-log wrote.
    if (from === 0) return offsets
    at += from
  }
}
