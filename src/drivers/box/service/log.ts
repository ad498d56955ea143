// Reads what a service printed. Each of its two streams is a directory of s6-log.
import type { LogItem, LogReader, LogStream, ServiceLog } from './driver.ts'
import { chunkBytes, type LogDirectory, openLogFile, prefixBytes } from './log-file.ts'
import { LogFollower } from './log-follower.ts'
import { findLastLines, findTime } from './log-search.ts'

/** Opens the log with this name. The box may have replaced anything below the root. */
export function openServiceLog(root: string, name: string): ServiceLog {
  const sources = (['stdout', 'stderr'] as const).map((stream) => ({
    stream,
    directory: { root, path: `${name}/${stream}` },
  }))
  return {
    fromNow: () => mergeByTime(sources.map(({ stream, directory }) => followFromEnd(stream, directory))),
    async fromBefore(lines) {
      if (lines === undefined) return mergeByTime(sources.map((one) => new LogFollower(one.stream, one.directory)))
      const found = await Promise.all(sources.map((one) => findLastLines(one.directory, lines)))
      const skip = Math.max(0, found.reduce((sum, one) => sum + one.count, 0) - lines)
      const followers = sources.map((one, at) => new LogFollower(one.stream, one.directory, found[at]!.start))
      return mergeByTime(followers, skip)
    },
    async fromTime(timeMs) {
      const starts = await Promise.all(sources.map((one) => findTime(one.directory, timeMs)))
      return mergeByTime(sources.map((one, at) => new LogFollower(one.stream, one.directory, starts[at])))
    },
  }
}

function followFromEnd(stream: LogStream, directory: LogDirectory): LogFollower {
  const current = openLogFile(directory, 'current')
  return new LogFollower(stream, directory, current && { file: current, offset: current.size() })
}

function mergeByTime(followers: LogFollower[], skip = 0): LogReader {
  let skipped = 0
  return {
    async read(bytes = chunkBytes) {
      const items: LogItem[] = []
      // Reading costs more than a line does, so a stream that had nothing new is not read again in this call.
      const flowing = new Set(followers)
      for (let size = 0; size < bytes; ) {
        const next = await takeEarliest(flowing)
        if (!next) break
        if (next.is === 'line' && skipped < skip) skipped++
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

async function takeEarliest(flowing: Set<LogFollower>): Promise<LogItem | undefined> {
  let first: { follower: LogFollower; timeMs: number } | undefined
  for (const follower of flowing) {
    const item = follower.next ?? (await follower.readNext())
    if (!item) {
      flowing.delete(follower)
      continue
    }
    const timeMs = item.is === 'line' ? item.timeMs : 0
    if (!first || timeMs < first.timeMs) first = { follower, timeMs }
  }
  return first?.follower.take()
}
