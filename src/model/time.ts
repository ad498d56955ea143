// Times are bigint microseconds since the epoch. `Date` truncates to milliseconds, which is too coarse for the target of
// a point-in-time restore.
export type Micros = bigint

const databaseForm = /^(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?\+00$/

/** Reads a `timestamptz` as PostgreSQL prints it in a UTC session. */
export function fromDatabase(text: string): Micros {
  const match = databaseForm.exec(text)
  if (!match) throw new Error(`not a timestamp from a UTC session: ${text}`)
  const [, year, month, day, hour, minute, second, fraction = ''] = match
  const seconds = Date.UTC(Number(year), Number(month) - 1, Number(day), Number(hour), Number(minute), Number(second))
  return BigInt(seconds) * 1000n + BigInt(fraction.padEnd(6, '0'))
}

const jsonForm = /^(.{19})(?:\.(\d{1,6}))?\+00:00$/

/** Converts a `timestamptz` in JSON of a UTC session to the format of `toRfc3339`. */
export function rfc3339FromJson(text: string): string {
  const match = jsonForm.exec(text)
  if (!match) throw new Error(`not a JSON timestamp from a UTC session: ${text}`)
  const [, whole, fraction] = match
  return fraction === undefined ? `${whole}Z` : `${whole}.${fraction.padEnd(6, '0')}Z`
}

export function nowMicros(): Micros {
  return BigInt(Date.now()) * 1000n
}

export function toMillis(time: Micros): number {
  return Number(time / 1000n)
}

/** RFC 3339 in UTC. The fraction is omitted when it is zero and has six digits otherwise. */
export function toRfc3339(time: Micros): string {
  const whole = new Date(toMillis(time)).toISOString().slice(0, 19)
  const fraction = time % 1_000_000n
  return fraction === 0n ? `${whole}Z` : `${whole}.${fraction.toString().padStart(6, '0')}Z`
}

const rfc3339Form = /^(\d{4})-(\d{2})-(\d{2})[Tt ](\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?(?:([Zz])|([+-])(\d{2}):(\d{2}))$/

/**
 * Parses an RFC 3339 timestamp with an offset; undefined for anything else. `Date` is not used, because it accepts 30
 * February and truncates to milliseconds. Digits beyond microseconds are dropped, as PostgreSQL has no finer resolution.
 */
export function parseTime(text: string): Micros | undefined {
  const match = rfc3339Form.exec(text)
  if (!match) return undefined
  const [year, month, day, hour, minute, second] = match.slice(1, 7).map(Number) as [
    number,
    number,
    number,
    number,
    number,
    number,
  ]
  const offsetHours = Number(match[10] ?? 0)
  const offsetMinutes = Number(match[11] ?? 0)
  if (!isDate(year, month, day) || hour > 23 || minute > 59 || second > 59) return undefined
  if (offsetHours > 23 || offsetMinutes > 59) return undefined
  const sign = match[9] === '-' ? -1 : 1
  const utcMs = utc(year, month, day, hour, minute, second) - sign * (offsetHours * 60 + offsetMinutes) * 60_000
  const fraction = BigInt((match[7] ?? '').slice(0, 6).padEnd(6, '0'))
  return BigInt(utcMs) * 1000n + fraction
}

/** `Date.UTC` maps the years 0 to 99 to 1900 to 1999. */
function utc(year: number, month: number, day: number, hour: number, minute: number, second: number): number {
  const date = new Date(0)
  date.setUTCFullYear(year, month - 1, day)
  date.setUTCHours(hour, minute, second)
  return date.getTime()
}

function isDate(year: number, month: number, day: number): boolean {
  if (month < 1 || month > 12 || day < 1) return false
  const isLeap = (year % 4 === 0 && year % 100 !== 0) || year % 400 === 0
  const days = [31, isLeap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
  return day <= days[month - 1]!
}
