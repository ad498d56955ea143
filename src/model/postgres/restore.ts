import { type Static, Type } from 'typebox'
import { type Micros, parseTime } from '../time.ts'
import { type Lsn, parseLsn, type WalPiece } from './wal.ts'

const Blank = (description: string) => Type.Optional(Type.Union([Type.String(), Type.Null()], { description }))

export const RestoreRequest = Type.Object(
  {
    backup_id: Blank('Label of a backup, as the list of backups shows it. Not together with `pitr_time`.'),
    pitr_time: Blank(
      'RFC 3339 timestamp with an explicit UTC offset, inside a recovery window. Restores everything up to the last commit that the server stamped at or before it, in the order of the log. Not together with `backup_id`.',
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
  /** The last one ends at the target, once that is known. */
  pieces: WalPiece[]
  timeline: number
  /** Set until the position of the target time is known: it lies between `from` and the end of the last piece. */
  search?: { time: string; from: string }
}

/** The parent's backup and WAL that a restored cluster depends on until its own backups cover the retention period. */
export interface ArchiveBase {
  backup: RestorePlan['backup']
  pieces: WalPiece[]
  /** The first restorable time: when the cluster was separated from its parent. */
  at: string
  /** The position of the next record at that time. Clusters of earlier versions do not have it. */
  lsn?: string | undefined
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

/** What the clock of a cluster went through while it ran evenly, and which part of it can be restored. */
export interface Pass {
  stretchId?: string
  earliest: Micros | null
  latest: Micros | null
  from: Micros
  /** Null while it goes on. */
  until: Micros | null
}

/** The restorable times that the clock went through only once, in their order. */
export function clearWindows(passes: Pass[]): Window[] {
  const clear = passes.flatMap((pass) => {
    const { earliest, latest } = pass
    if (earliest === null || latest === null || earliest > latest) return []
    const others = passes.filter((other) => other !== pass)
    return others.reduce(
      (parts: Window[], other) => parts.flatMap((part) => subtract(part, other)),
      [{ earliest, latest }],
    )
  })
  return clear.sort((a, b) => (a.earliest < b.earliest ? -1 : 1))
}

/** Whether the clock showed this time in the pass. */
export function hasShown({ from, until }: Pass, time: Micros): boolean {
  return from <= time && (until === null || time <= until)
}

function subtract(part: Window, { from, until }: Pass): Window[] {
  if (from > part.latest || (until !== null && until < part.earliest)) return [part]
  const parts = [{ earliest: part.earliest, latest: from - 1n }]
  if (until !== null) parts.push({ earliest: until + 1n, latest: part.latest })
  return parts.filter(({ earliest, latest }) => earliest <= latest)
}
