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
