import { type Static, Type } from 'typebox'
import { type Micros, parseTime } from '../time.ts'
import { type Lsn, parseLsn, type WalPiece } from './wal.ts'

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

const restorePhases = ['waiting', 'copying', 'replaying', 'finishing', 'done', 'failed'] as const
export type RestorePhase = (typeof restorePhases)[number]

/** The backup and WAL position that a restore target was resolved to. It is resolved once, so that retries restore the same state. */
export interface RestorePlan {
  backup: { clusterId: string; label: string; startLsn: string; stopLsn: string }
  pieces: WalPiece[]
  target: { kind: 'time'; time: string } | { kind: 'end' }
  timeline: number
}

/** The position from which the plan needs the log of the source itself, not of those that it was restored from. */
export function ownStart({ backup, pieces }: RestorePlan): Lsn {
  return parseLsn(pieces.length === 1 ? backup.startLsn : pieces.at(-2)!.end)
}

/** `<truncated source name>-restore-<yyyymmddhhmmss>`, with a number from the second attempt on. */
export function restoredName(source: string, at: Micros, attempt: number): string {
  const stamp = compactUtc(at)
  const suffix = `-restore-${stamp}${attempt > 1 ? `-${attempt}` : ''}`
  return source.slice(0, 63 - suffix.length).replace(/-+$/, '') + suffix
}

function compactUtc(time: Micros): string {
  return new Date(Number(time / 1000n)).toISOString().slice(0, 19).replaceAll(/[-:T]/g, '')
}

/** Parses the start time from a backup label; undefined if it is not a label. */
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
