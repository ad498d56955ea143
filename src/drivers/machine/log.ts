// The output of a machine and the platform's messages about it. It survives a stop and is removed with the machine.
import { type FSWatcher, watch } from 'node:fs'
import { basename, dirname } from 'node:path'
import { takeWithTies } from '../../model/app/machine-log.ts'
import type { LogItem } from '../box/service/driver.ts'
import { openServiceLog } from '../box/service/log.ts'
import type { LogLine } from './driver.ts'
import { nameMark, platformMark } from './script.ts'

const chunkBytes = 256 * 1024
/** Catches what the file watcher misses, such as a directory that is created later. */
const pollMs = 500

export async function readMachineLog(directory: string, lines: number): Promise<LogLine[]> {
  const reader = await openServiceLog(dirname(directory), basename(directory)).fromBefore(lines)
  const found: LogLine[] = []
  try {
    // The bound ends the loop for a machine that prints faster than this reads.
    for (let items = await reader.read(chunkBytes); items.length > 0 && found.length < lines * 2; ) {
      found.push(...linesOf(items))
      items = await reader.read(chunkBytes)
    }
  } finally {
    reader.close()
  }
  return lines === 0 ? [] : found.slice(-lines)
}

/** Reads lines after this time, oldest first: `lines` of them, and those with the same time as the last. */
export async function readMachineLogAfter(directory: string, afterMs: number, lines: number): Promise<LogLine[]> {
  const reader = await openServiceLog(dirname(directory), basename(directory)).fromTime(afterMs)
  const found: LogLine[] = []
  try {
    for (let items = await reader.read(chunkBytes); items.length > 0; items = await reader.read(chunkBytes)) {
      found.push(...linesOf(items).filter(({ at }) => at > afterMs))
      if (found.length > lines && found.at(-1)!.at > found[lines - 1]!.at) break
    }
  } finally {
    reader.close()
  }
  return takeWithTies(found, lines)
}

export async function* followMachineLog(
  directory: string,
  lines: number,
  signal: AbortSignal,
): AsyncGenerator<LogLine> {
  const log = openServiceLog(dirname(directory), basename(directory))
  const changes = watchLog(directory, signal)
  const reader = lines > 0 ? await log.fromBefore(lines) : log.fromNow()
  try {
    while (!signal.aborted) {
      // Subscribing before reading ensures that a change during the read is not missed.
      const changed = changes.next()
      const items = await reader.read(chunkBytes)
      for (const line of linesOf(items)) {
        if (signal.aborted) return
        yield line
      }
      if (items.length === 0) await changed
    }
  } finally {
    reader.close()
    changes.close()
  }
}

/** `next` resolves when a file of the log has changed. */
function watchLog(directory: string, signal: AbortSignal): { next(): Promise<void>; close(): void } {
  let change = Promise.withResolvers<void>()
  const notify = () => {
    change.resolve()
    change = Promise.withResolvers()
  }
  const watched = new Map<string, FSWatcher>()
  const watchAll = () => {
    for (const stream of ['stdout', 'stderr']) {
      if (watched.has(stream)) continue
      try {
        const watcher = watch(`${directory}/${stream}`, { persistent: false }, notify)
        watched.set(
          stream,
          watcher.on('error', () => watched.delete(stream)),
        )
      } catch {} // the directory does not exist yet
    }
  }
  const timer = setInterval(() => {
    watchAll()
    notify()
  }, pollMs)
  watchAll()
  signal.addEventListener('abort', notify)
  return {
    next: () => change.promise,
    close() {
      clearInterval(timer)
      signal.removeEventListener('abort', notify)
      for (const watcher of watched.values()) watcher.close()
    },
  }
}

function linesOf(items: LogItem[]): LogLine[] {
  return items.flatMap((item) => {
    if (item.is !== 'line') return []
    // A platform message follows on the same line when the program printed text without a line break.
    const { container, text: whole } = splitName(item.text)
    const [text, ...messages] = whole.split(platformMark)
    const from = { at: item.timeMs, ...(container !== undefined && { container }) }
    const line = { ...from, stream: item.stream, text: text! }
    const ours = messages.map((text) => ({ ...from, stream: 'platform' as const, text }))
    return ours.length > 0 && text === '' ? ours : [line, ...ours]
  })
}

/** The lines of containers begin with their names. */
function splitName(text: string): { container?: string; text: string } {
  if (!text.startsWith(nameMark)) return { text }
  const [, container = '', ...rest] = text.split(nameMark)
  return { container, text: rest.join(nameMark) }
}
