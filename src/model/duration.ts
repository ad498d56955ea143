// Durations in the format of Go's time.ParseDuration, which is what API clients send: 5s, 5.0s, 1m30s, 200ms, 0.

/** Milliseconds per unit. */
const goUnits: Record<string, number> = {
  ns: 1e-6,
  us: 1e-3,
  µs: 1e-3, // the micro sign
  μs: 1e-3, // the Greek letter
  ms: 1,
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
}

/** Go has no units beyond hours. A year has 365 days. */
const calendarUnits: Record<string, number> = { ...goUnits, d: 86_400_000, w: 604_800_000, y: 31_536_000_000 }

const grammars = { go: grammar(goUnits), calendar: grammar(calendarUnits) }

/** Below the 24.8 days that a timer can count. */
const maxTimerMs = 24 * 3_600_000

function grammar(units: Record<string, number>) {
  // Longer units come first, because `m` would match the start of `ms`.
  const names = Object.keys(units).sort((a, b) => b.length - a.length)
  const part = new RegExp(`(\\d+\\.?\\d*|\\.\\d+)(${names.join('|')})`, 'g')
  return { units, part, whole: new RegExp(`^[+-]?(?:0|(?:${part.source})+)$`) }
}

/**
 * Milliseconds, or undefined when the text is not a duration. The `calendar` units add days, weeks and years (`30d`,
 * `2w`, `1y`) for people who type durations; API clients send Go durations.
 */
export function parseDuration(text: string, format: keyof typeof grammars = 'go'): number | undefined {
  const { units, part, whole } = grammars[format]
  if (text.length > 100 || !whole.test(text)) return undefined
  let sum = 0
  for (const [, number, unit] of text.matchAll(part)) sum += Number(number) * units[unit!]!
  return text.startsWith('-') ? -sum : sum
}

/** Milliseconds for a timer. Invalid and non-positive durations count as absent, so that requests do not fail on them. */
export function durationOr(text: string | undefined, defaultMs: number): number {
  const ms = text === undefined ? undefined : parseDuration(text)
  return ms === undefined || !(ms > 0) ? defaultMs : Math.min(ms, maxTimerMs)
}

/** The inverse of parseDuration, in the form that Go prints. */
export function formatDuration(ms: number): string {
  if (ms === 0) return '0s'
  if (ms < 1) return ms >= 1e-3 ? `${withoutRoundingError(ms * 1e3)}µs` : `${Math.round(ms * 1e6)}ns`
  if (ms < 1_000) return `${withoutRoundingError(ms)}ms`
  const hours = Math.floor(ms / 3_600_000)
  const minutes = Math.floor((ms % 3_600_000) / 60_000)
  const seconds = `${withoutRoundingError((ms % 60_000) / 1_000)}s`
  return `${hours > 0 ? `${hours}h` : ''}${hours > 0 || minutes > 0 ? `${minutes}m` : ''}${seconds}`
}

function withoutRoundingError(value: number): number {
  return Math.round(value * 1e9) / 1e9
}

/** Milliseconds of a duration in a machine config: Go text, or an integer number of nanoseconds. */
export function goDurationMs(duration: string | number | undefined): number | undefined {
  if (typeof duration === 'number') return duration / 1e6
  return duration === undefined ? undefined : parseDuration(duration)
}
