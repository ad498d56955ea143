// Finds positions in the log of one stream by the number of lines or by time.
import {
  chunkBytes,
  type LogDirectory,
  type LogFile,
  type LogPosition,
  listFullFiles,
  newline,
  openLogFile,
  parseLine,
  prefixBytes,
} from './log-file.ts'
import { endMark } from './script.ts'

/** The position of the last `lines` lines, and how many there are if the log has fewer. */
export async function findLastLines(
  directory: LogDirectory,
  lines: number,
): Promise<{ start: LogPosition | undefined; count: number }> {
  let count = 0
  let start: LogPosition | undefined
  for (const name of newestFirst(directory)) {
    const file = openLogFile(directory, name)
    if (!file) continue
    const offsets = (await findLineOffsets(file)).slice(-(lines - count))
    start?.file.close()
    start = { file, offset: offsets[0] ?? file.size() }
    count += offsets.length
    if (count >= lines) break
  }
  return { start, count }
}

/** A position before all lines that are newer than this time; undefined for the beginning of the log. */
export async function findTime(directory: LogDirectory, timeMs: number): Promise<LogPosition | undefined> {
  for (const name of newestFirst(directory)) {
    const file = openLogFile(directory, name)
    const first = file && (await findLine(file, 0))
    if (file && first && first.timeMs <= timeMs) return { file, offset: await findOffset(file, timeMs) }
    file?.close()
  }
  return undefined
}

function newestFirst(directory: LogDirectory): string[] {
  return [...listFullFiles(directory), 'current'].reverse()
}

/** A binary search for an offset less than a chunk before the first line that is newer than this time. */
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

/** The first line that begins at this offset or later. */
async function findLine(file: LogFile, from: number): Promise<{ offset: number; timeMs: number } | undefined> {
  const bytes = await file.read(from)
  const begin = from === 0 ? 0 : bytes.indexOf(newline) + 1
  if (bytes.length - begin < prefixBytes || (from > 0 && begin === 0)) return undefined
  return { offset: from + begin, timeMs: parseLine(bytes.subarray(begin, begin + prefixBytes)).timeMs }
}

/** s6-log makes no longer files; of one that the box made, only the end is read. */
const maxFileBytes = 9 * 1024 * 1024

/** The offsets of all lines, without end marks and the empty lines before them. */
async function findLineOffsets(file: LogFile): Promise<number[]> {
  const offsets: number[] = []
  let lastWasEmpty = false
  for (let at = Math.max(0, file.size() - maxFileBytes); ; ) {
    const bytes = await file.read(at)
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
    // The rest is an incomplete line, or one longer than s6-log writes.
    if (from === 0) return offsets
    at += from
  }
}
