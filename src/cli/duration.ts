import { InvalidArgumentError } from 'commander'

const secondsPer: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800, y: 31_536_000 }

/** Seconds in `90s`, `30m`, `12h`, `30d`, `2w` or `1y`, where a year has 365 days. */
export function parseDuration(text: string): number {
  const match = /^(\d{1,10})([smhdwy])$/.exec(text.trim())
  const seconds = match ? Number(match[1]) * secondsPer[match[2]!]! : 0
  if (seconds === 0) throw new InvalidArgumentError('Write a number and a unit: 90s, 30m, 12h, 30d, 2w or 1y.')
  return seconds
}
