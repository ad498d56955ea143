import { type Static, Type } from 'typebox'
import type { Micros } from '../time.ts'
import type { WalPiece } from './wal.ts'

const Blank = (description: string) => Type.Optional(Type.Union([Type.String(), Type.Null()], { description }))

export const RestoreRequest = Type.Object(
  {
    backup_id: Blank('Label of a backup, as the list of backups shows it. Not together with `pitr_time`.'),
    pitr_time: Blank(
      'RFC 3339 timestamp with an explicit UTC offset, inside the recovery window. Not together with `backup_id`.',
    ),
    name: Blank('Name of the new cluster; generated when omitted or blank.'),
  },
  { title: 'RestoreRequest', examples: [{ pitr_time: '2026-01-01T12:00:00Z', name: 'shop-again' }] },
)
export type RestoreRequest = Static<typeof RestoreRequest>

export const restorePhases = ['waiting', 'copying', 'replaying', 'finishing', 'done', 'failed'] as const
export type RestorePhase = (typeof restorePhases)[number]

/** What a target was resolved to, once: the same backup and the same place in the log, whatever happens later. */
export interface RestorePlan {
  backup: { clusterId: string; label: string; startLsn: string; stopLsn: string }
  pieces: WalPiece[]
  target: { kind: 'time'; time: string } | { kind: 'end' }
  timeline: number
}

const form = /^(\d{4})-(\d{2})-(\d{2})[Tt ](\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?(?:([Zz])|([+-])(\d{2}):(\d{2}))$/

/**
 * Reads an RFC 3339 timestamp with an offset; undefined for anything else. `Date` is not asked: it takes 30 February
 * for 2 March and cuts to milliseconds. Digits past the microsecond are dropped, as PostgreSQL knows no finer time.
 */
export function parseTime(text: string): Micros | undefined {
  const match = form.exec(text)
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
  const utcMillis = utc(year, month, day, hour, minute, second) - sign * (offsetHours * 60 + offsetMinutes) * 60_000
  const fraction = BigInt((match[7] ?? '').slice(0, 6).padEnd(6, '0'))
  return BigInt(utcMillis) * 1000n + fraction
}

/** `Date.UTC` takes the years 0 to 99 for those of the last century. */
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

/** `<source name, cut>-restore-<yyyymmddhhmmss>`, with a number behind it from the second on. */
export function restoredName(source: string, at: Micros, attempt: number): string {
  const stamp = compactUtc(at)
  const suffix = `-restore-${stamp}${attempt > 1 ? `-${attempt}` : ''}`
  return source.slice(0, 63 - suffix.length).replace(/-+$/, '') + suffix
}

function compactUtc(time: Micros): string {
  return new Date(Number(time / 1000n)).toISOString().slice(0, 19).replaceAll(/[-:T]/g, '')
}

/** A backup's label says when it started. Undefined for what is no label. */
export function labelTime(label: string): Micros | undefined {
  const match = /^(\d{4})(\d{2})(\d{2})-(\d{2})(\d{2})(\d{2})F$/.exec(label)
  return match ? parseTime(`${match[1]}-${match[2]}-${match[3]}T${match[4]}:${match[5]}:${match[6]}Z`) : undefined
}

export function newLabel(at: Micros): string {
  const stamp = compactUtc(at)
  return `${stamp.slice(0, 8)}-${stamp.slice(8)}F`
}

export interface Window {
  earliest: Micros
  latest: Micros
}
