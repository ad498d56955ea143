// What a machine printed, and what was said about it. It stays over a stop and goes with the machine.
import { type FSWatcher, watch } from 'node:fs'
import type { LogItem } from '../box/service/driver.ts'
import { openServiceLog } from '../box/service/log.ts'
import type { LogLine } from './driver.ts'
import { platformMark } from './script.ts'

const chunkBytes = 256 * 1024
/** For what no watching tells: a directory that appears later. */
const lookMs = 500

export async function readMachineLog(directory: string, lines: number): Promise<LogLine[]> {
  const reader = await openServiceLog(directory).fromBefore(lines)
  const found: LogLine[] = []
  try {
    // A machine that prints faster than it is read is not read for ever.
    for (let items = await reader.read(chunkBytes); items.length > 0 && found.length < lines * 2; ) {
      found.push(...linesOf(items))
      items = await reader.read(chunkBytes)
    }
  } finally {
    reader.close()
  }
  return lines === 0 ? [] : found.slice(-lines)
}

/** At least so many lines after this time, if there are as many, the oldest first; what was printed at once is not parted. */
export async function readMachineLogAfter(directory: string, afterMs: number, lines: number): Promise<LogLine[]> {
  const reader = await openServiceLog(directory).fromTime(afterMs)
  const found: LogLine[] = []
  try {
    for (let items = await reader.read(chunkBytes); items.length > 0; items = await reader.read(chunkBytes)) {
      found.push(...linesOf(items).filter(({ at }) => at > afterMs))
      if (found.length > lines && found.at(-1)!.at > found[lines - 1]!.at) break
    }
  } finally {
    reader.close()
  }
  return withTies(found, lines)
}

/** The first of them, and those of the same time as the last of these. */
export function withTies<T extends { at: number }>(sorted: T[], count: number): T[] {
  const last = sorted[count - 1]
  return last === undefined ? sorted : sorted.filter(({ at }) => at <= last.at)
}

export async function* followMachineLog(directory: string, lines: number, gone: AbortSignal): AsyncGenerator<LogLine> {
  const log = openServiceLog(directory)
  const bell = listenTo(directory, gone)
  const reader = lines > 0 ? await log.fromBefore(lines) : log.fromNow()
  try {
    while (!gone.aborted) {
      const heard = bell.next()
      const items = await reader.read(chunkBytes)
      for (const line of linesOf(items)) {
        if (gone.aborted) return
        yield line
      }
      if (items.length === 0) await heard
    }
  } finally {
    reader.close()
    bell.close()
  }
}

/** Rings when a file of the log has changed. */
function listenTo(directory: string, gone: AbortSignal): { next(): Promise<void>; close(): void } {
  let ring = Promise.withResolvers<void>()
  const pull = () => {
    ring.resolve()
    ring = Promise.withResolvers()
  }
  const watched = new Map<string, FSWatcher>()
  const watchAll = () => {
    for (const stream of ['stdout', 'stderr']) {
      if (watched.has(stream)) continue
      try {
        const watcher = watch(`${directory}/${stream}`, { persistent: false }, pull)
        watched.set(
          stream,
          watcher.on('error', () => watched.delete(stream)),
        )
      } catch {} // not there yet
    }
  }
  const timer = setInterval(() => {
    watchAll()
    pull()
  }, lookMs)
  watchAll()
  gone.addEventListener('abort', pull)
  return {
    next: () => ring.promise,
    close() {
      clearInterval(timer)
      gone.removeEventListener('abort', pull)
      for (const watcher of watched.values()) watcher.close()
    },
  }
}

function linesOf(items: LogItem[]): LogLine[] {
  return items.flatMap((item) => {
    if (item.is !== 'line') return []
    // What we say comes after whatever the program printed without ending the line.
    const [text, ...said] = item.text.split(platformMark)
    const line = { at: item.timeMs, stream: item.stream, text: text! }
    const ours = said.map((text) => ({ at: item.timeMs, stream: 'platform' as const, text }))
    return ours.length > 0 && text === '' ? ours : [line, ...ours]
  })
}
