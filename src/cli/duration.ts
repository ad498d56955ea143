import { InvalidArgumentError } from 'commander'
import { parseDuration } from '../model/duration.ts'

const secondsPerDay = 86_400
const form = /^(?:(\d{1,6})y)?(?:(\d{1,6})w)?(?:(\d{1,6})d)?(.*)$/

// About 3000 years. Larger values would leave the range of `Date`.
const maxSeconds = 1e11

/**
 * Reads `90s`, `1h30m`, `30d`, `2w` or `1y12h`: a duration as Go writes it, with years of 365 days, weeks and days in
 * front. Returns undefined when the text is not a duration, is negative, or is too long.
 */
export function parseSeconds(text: string): number | undefined {
  const [, years = 0, weeks = 0, days = 0, rest] = form.exec(text) ?? []
  const restMs = rest === '' && text !== '' ? 0 : parseDuration(rest ?? '')
  if (restMs === undefined) return undefined
  const seconds = (Number(years) * 365 + Number(weeks) * 7 + Number(days)) * secondsPerDay + restMs / 1000
  return restMs >= 0 && seconds <= maxSeconds ? seconds : undefined
}

/** Reads the value of an option as a positive whole number of seconds. */
export function parseDurationOption(text: string): number {
  const seconds = parseSeconds(text.trim())
  if (seconds && Number.isInteger(seconds)) return seconds
  throw new InvalidArgumentError('Write a number and a unit: 90s, 30m, 12h, 30d, 2w or 1y.')
}
