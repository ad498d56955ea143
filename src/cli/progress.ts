import { setTimeout as delay } from 'node:timers/promises'
import { Interruption } from './failure.ts'
import type { Terminal } from './output.ts'

/** Standard error, or what stands for it. */
export interface ProgressStream {
  isTTY?: boolean
  columns?: number
  write(text: string): unknown
}

export interface Progress {
  show(status: string): void
  /** Leaves nothing behind at a terminal. */
  end(): void
}

/** Less than the five reads in a second that the rate limit allows. */
const pollMs = 250

/** How something comes along: one line that is rewritten at a terminal, elsewhere a line for each new status. */
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
    // A line that wraps could not be rewritten. Some terminals say that they have no columns.
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

/** Looks again and again until what is seen needs no more waiting. After Ctrl-C `goesOn` says what that does not end. */
export async function pollUntil<T>(
  progress: Progress,
  fetchState: () => Promise<T>,
  pendingStatus: (seen: T) => string | undefined,
  interruptNotice?: string,
): Promise<T> {
  const interruption = Promise.withResolvers<never>()
  const interrupt = () => interruption.reject(new Interruption(interruptNotice))
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
