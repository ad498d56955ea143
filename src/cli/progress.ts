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
const pollMillis = 250

/** How something comes along: one line that is rewritten at a terminal, elsewhere a line for each new status. */
export function startProgress(
  { json }: Pick<Terminal, 'json'>,
  stream: ProgressStream,
  now: () => number = Date.now,
): Progress {
  const start = now()
  const lineOf = (status: string) => `${status} (${Math.floor((now() - start) / 1000)} s)`
  if (json) return { show: () => {}, end: () => {} }
  return stream.isTTY ? rewrittenLine(stream, lineOf) : plainLines(stream, lineOf)
}

type LineOf = (status: string) => string

const eraseLine = '\r\u001b[2K'

function rewrittenLine(stream: ProgressStream, lineOf: LineOf): Progress {
  return {
    // A line that wraps could not be rewritten. Some terminals say that they have no columns.
    show: (status) => stream.write(eraseLine + lineOf(status).slice(0, (stream.columns || 80) - 1)),
    end: () => stream.write(eraseLine),
  }
}

function plainLines(stream: ProgressStream, lineOf: LineOf): Progress {
  let last: string | undefined
  return {
    show(status) {
      if (status !== last) stream.write(`${lineOf(status)}\n`)
      last = status
    },
    end: () => {},
  }
}

/** Looks again and again until what is seen needs no more waiting. After Ctrl-C `goesOn` says what that does not end. */
export async function watch<T>(
  progress: Progress,
  look: () => Promise<T>,
  waitsFor: (seen: T) => string | undefined,
  goesOn?: string,
): Promise<T> {
  const interruption = Promise.withResolvers<never>()
  const interrupt = () => interruption.reject(new Interruption(goesOn))
  if (goesOn !== undefined) process.once('SIGINT', interrupt)
  try {
    for (;;) {
      const seen = await Promise.race([look(), interruption.promise])
      const status = waitsFor(seen)
      if (status === undefined) return seen
      progress.show(status)
      await Promise.race([delay(pollMillis), interruption.promise])
    }
  } finally {
    process.off('SIGINT', interrupt)
    progress.end()
  }
}
