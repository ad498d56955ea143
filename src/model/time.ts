// Times are microseconds since the epoch in a bigint. `Date` cuts to milliseconds, and a restore to a point in time
// must not.
export type Micros = bigint

const databaseForm = /^(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?\+00$/

/** Reads a `timestamptz` as PostgreSQL prints it in a UTC session. */
export function fromDatabase(text: string): Micros {
  const match = databaseForm.exec(text)
  if (!match) throw new Error(`not a timestamp of a UTC session: ${text}`)
  const [, year, month, day, hour, minute, second, fraction = ''] = match
  const seconds = Date.UTC(Number(year), Number(month) - 1, Number(day), Number(hour), Number(minute), Number(second))
  return BigInt(seconds) * 1000n + BigInt(fraction.padEnd(6, '0'))
}

const jsonForm = /^(.{19})(?:\.(\d{1,6}))?\+00:00$/

/** RFC 3339 as `toRfc3339` writes it, from a `timestamptz` as PostgreSQL prints it in the JSON of a UTC session. */
export function rfc3339FromJson(text: string): string {
  const match = jsonForm.exec(text)
  if (!match) throw new Error(`not a timestamp in JSON of a UTC session: ${text}`)
  const [, whole, fraction] = match
  return fraction === undefined ? `${whole}Z` : `${whole}.${fraction.padEnd(6, '0')}Z`
}

export function nowMicros(): Micros {
  return BigInt(Date.now()) * 1000n
}

export function toMillis(time: Micros): number {
  return Number(time / 1000n)
}

/** RFC 3339 in UTC. The fraction is left out when it is zero and otherwise keeps all six digits. */
export function toRfc3339(time: Micros): string {
  const whole = new Date(toMillis(time)).toISOString().slice(0, 19)
  const fraction = time % 1_000_000n
  return fraction === 0n ? `${whole}Z` : `${whole}.${fraction.toString().padStart(6, '0')}Z`
}
