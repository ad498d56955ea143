// Durations as Go writes them, which is what clients of the sandbox interface send: 5s, 5.0s, 1m30s, 1h0m0s, 200ms, 0.
const units: Record<string, number> = {
  ns: 1e-6,
  us: 1e-3,
  µs: 1e-3, // the micro sign
  μs: 1e-3, // the Greek letter
  ms: 1,
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
}
const part = /(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)/g
const whole = new RegExp(`^[+-]?(?:0|(?:${part.source})+)$`)

/** Beyond it timers do not count. */
const mostMs = 24 * 3_600_000

/** In milliseconds; undefined when it is not a duration. */
export function parseDuration(text: string): number | undefined {
  if (text.length > 100 || !whole.test(text)) return undefined
  let sum = 0
  for (const [, number, unit] of text.matchAll(part)) sum += Number(number) * units[unit!]!
  return text.startsWith('-') ? -sum : sum
}

/** What is not a duration, or not a positive one, counts as absent: clients must not fail because of it. */
export function durationOr(text: string | undefined, presetMs: number): number {
  const time = text === undefined ? undefined : parseDuration(text)
  return time === undefined || !(time > 0) ? presetMs : Math.min(time, mostMs)
}

/** As Go prints it: 15s, 1m30s, 1h0m0s, 200ms. */
export function formatDuration(ms: number): string {
  if (ms === 0) return '0s'
  if (ms < 1) return ms >= 1e-3 ? `${rounded(ms * 1e3)}µs` : `${Math.round(ms * 1e6)}ns`
  if (ms < 1_000) return `${rounded(ms)}ms`
  const hours = Math.floor(ms / 3_600_000)
  const minutes = Math.floor((ms % 3_600_000) / 60_000)
  const seconds = `${rounded((ms % 60_000) / 1_000)}s`
  return `${hours > 0 ? `${hours}h` : ''}${hours > 0 || minutes > 0 ? `${minutes}m` : ''}${seconds}`
}

function rounded(value: number): number {
  return Math.round(value * 1e9) / 1e9
}
