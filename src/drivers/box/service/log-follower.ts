import type { LogItem, LogStream } from './driver.ts'
import {
  chunkBytes,
  type LogDirectory,
  type LogFile,
  type LogPosition,
  listFullFiles,
  newline,
  openLogFile,
  parseLine,
} from './log-file.ts'
import { endMark } from './script.ts'

/** Reads one stream line by line, across rotations. */
export class LogFollower {
  private readonly stream: LogStream
  private readonly directory: LogDirectory
  private file: LogFile | undefined
  private offset: number
  /** The beginning of a line whose end has not been read. */
  private partial = Buffer.alloc(0)
  private readonly items: LogItem[] = []
  private taken = 0
  /** An empty line that is held back until it is known whether the finish script printed it before its end mark. */
  private emptyLine: LogItem | undefined

  /** Starts with the oldest file unless a position is given. */
  constructor(stream: LogStream, directory: LogDirectory, start?: LogPosition) {
    this.stream = stream
    this.directory = directory
    this.file = start?.file
    this.offset = start?.offset ?? 0
  }

  /** The next item, if one has been read already. */
  get next(): LogItem | undefined {
    return this.items[this.taken]
  }

  /** Reads until there is a next item, or nothing more to read. */
  async readNext(): Promise<LogItem | undefined> {
    while (this.next === undefined && (await this.readMore()));
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
  private async readMore(): Promise<boolean> {
    this.file ??= this.openOldest()
    if (!this.file) return false
    if (await this.readChunk()) return true
    const next = this.openNext()
    if (!next) return this.flushEmptyLine()
    // s6-log may have written to the old file between our last read and the rotation.
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
    const [oldest] = listFullFiles(this.directory)
    return openLogFile(this.directory, oldest ?? 'current')
  }

  /** Opens the file after the present one if that has been rotated. */
  private openNext(): LogFile | undefined {
    const current = openLogFile(this.directory, 'current')
    if (!current) return undefined
    if (current.inode === this.file!.inode) {
      current.close()
      return undefined
    }
    const names = listFullFiles(this.directory)
    const files = names.map((name) => openLogFile(this.directory, name)).filter((file) => file !== undefined)
    const position = files.findIndex((file) => file.inode === this.file!.inode)
    // The present file is deleted when three newer ones are full; others may have been deleted after it.
    if (position === -1 && files.length >= 3) this.items.push({ is: 'gap', stream: this.stream })
    const [next = current] = files.slice(position + 1)
    for (const file of [...files, current]) if (file !== next) file.close()
    return next
  }

  private async readChunk(): Promise<boolean> {
    const file = this.file!
    if (file.size() <= this.offset) return false
    const bytes = await file.read(this.offset)
    if (bytes.length === 0) return false
    this.offset += bytes.length
    this.split(this.partial.length === 0 ? bytes : Buffer.concat([this.partial, bytes]))
    return true
  }

  private split(bytes: Buffer): void {
    let from = 0
    for (let at = bytes.indexOf(newline); at !== -1; at = bytes.indexOf(newline, from)) {
      this.add(bytes.subarray(from, at))
      from = at + 1
    }
    // s6-log cuts lines at 8 KiB, so a longer one was written by the box and is cut here.
    if (bytes.length - from > chunkBytes) {
      this.add(bytes.subarray(from))
      from = bytes.length
    }
    this.partial = Buffer.from(bytes.subarray(from))
  }

  private add(bytes: Buffer): void {
    const line = parseLine(bytes)
    const end = line.text.startsWith(endMark) ? /(\d{1,3})$/.exec(line.text) : null
    if (end) {
      this.emptyLine = undefined
      this.items.push({ is: 'end', stream: this.stream, code: Number(end[1]) })
      return
    }
    this.flushEmptyLine()
    const item: LogItem = { is: 'line', stream: this.stream, ...line }
    if (line.text === '') this.emptyLine = item
    else this.items.push(item)
  }

  private flushEmptyLine(): boolean {
    if (!this.emptyLine) return false
    this.items.push(this.emptyLine)
    this.emptyLine = undefined
    return true
  }
}
