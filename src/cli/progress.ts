import { setTimeout as delay } from 'node:timers/promises'
import { InterruptedError } from './errors.ts'
import type { Terminal } from './output.ts'

/** Standard error, or a replacement in tests. */
export interface ProgressStream {
  isTTY?: boolean
  columns?: number
  write(text: string): unknown
}

export interface Progress {
  show(status: string): void
  /** Clears the line on a terminal. */
  end(): void
}

/** Stays below the rate limit of five reads per second. */
const pollMs = 250

/** Shows progress: on a terminal one line that is rewritten, elsewhere a new line for each new status. */
export function startProgress(
  { json }: Pick<Terminal, 'json'>,
  stream: ProgressStream,
  now: () => number = Date.now,
): Progress {
  const start = now()
  const formatLine = (status: string) => `${status} (${Math.floor((now() - start) / 1000)} s)`
  if (json) return { show: () => {}, end: () => {} }
  return stream.isTTY ? rewrittenLine(stream, formatLine) : plainLines(stream, formatLine)
}

type FormatLine = (status: string) => string

const eraseLine = '\r\u001b[2K'

function rewrittenLine(stream: ProgressStream, formatLine: FormatLine): Progress {
  return {
    // A line that wraps cannot be rewritten. Some terminals report 0 columns.
    show: (status) => stream.write(eraseLine + formatLine(status).slice(0, (stream.columns || 80) - 1)),
    end: () => stream.write(eraseLine),
  }
}

function plainLines(stream: ProgressStream, formatLine: FormatLine): Progress {
  let last: string | undefined
  return {
    show(status) {
      if (status !== last) stream.write(`${formatLine(status)}\n`)
      last = status
    },
    end: () => {},
  }
}

/**
 * Polls until `pendingStatus` returns undefined for the fetched state, and shows the status until then. With an
 * `interruptNotice`, Ctrl-C ends the wait with an error that carries the notice.
 */
export async function pollUntil<T>(
  progress: Progress,
  fetchState: () => Promise<T>,
  pendingStatus: (seen: T) => string | undefined,
  interruptNotice?: string,
): Promise<T> {
  const interruption = Promise.withResolvers<never>()
  const interrupt = () => interruption.reject(new InterruptedError(interruptNotice))
  if (interruptNotice !== undefined) process.once('SIGINT', interrupt)
  try {
    for (;;) {
      const seen = await Promise.race([fetchState(), interruption.promise])
      const status = pendingStatus(seen)
      if (status === undefined) return seen
      progress.show(status)
      await Promise.race([delay(pollMs), interruption.promise])
    }
  } finally {
    process.off('SIGINT', interrupt)
    progress.end()
  }
}
