// What a restore replays, and whether it did.
import {
  endOfRecords,
  formatLsn,
  type Lsn,
  parseLsn,
  segmentBytes,
  type WalPiece,
} from '../../../model/postgres/wal.ts'
import type { PlannedWal } from '../../repository/driver.ts'

export type RecoveryTarget =
  /** `YYYY-MM-DD HH:MM:SS.ffffff+00` */
  | { kind: 'time'; time: string }
  /** The cut. */
  | { kind: 'end' }

/** The list for the copy: how many bytes there will be in all, and then a line for each file of the log. */
export function renderPlan(wal: PlannedWal[], backupBytes: number): string {
  const total = backupBytes + wal.length * Number(segmentBytes)
  return `${total}\n${wal.map(({ bytes, name, path }) => `${bytes} ${name} ${oneLine(path)}\n`).join('')}`
}

function oneLine(path: string): string {
  if (path.includes('\n')) throw new Error(`the path ${JSON.stringify(path)} spans lines`)
  return path
}

export function totalOf(plan: string): number {
  return Number.parseInt(plan, 10)
}

/** Not as JSON: whether the manifest is sound is for the verification to say. */
export function manifestBytes(manifest: string): number {
  let bytes = 0
  for (const match of manifest.matchAll(/"Size": (\d+)/g)) bytes += Number(match[1])
  return bytes
}

/** Where a new timeline began, and why there. */
export interface TimelineStart {
  timeline: number
  parent: number
  lsn: Lsn
  reason: string
}

/** The last line of a history file is about its own timeline; those before it are about its ancestors. */
export function readTimelineStart(timeline: number, history: string): TimelineStart {
  const lines = history.split('\n').filter((line) => /^\s*\d/.test(line))
  const match = /^\s*(\d+)\s+(\S+)\s*(.*)$/.exec(lines.at(-1) ?? '')
  if (!match) throw new Error(`the history of timeline ${timeline} is empty`)
  return { timeline, parent: Number(match[1]), lsn: parseLsn(match[2]!), reason: match[3]! }
}

export interface Expected {
  target: RecoveryTarget
  pieces: WalPiece[]
  timeline: number
}

/**
 * What is missing, or undefined when replay came as far as it should. PostgreSQL takes a damaged record for the end of
 * the log and opens the cluster there, so that its own word that all is well means nothing without this.
 */
export function findShortfall(start: TimelineStart, { target, pieces, timeline }: Expected): string | undefined {
  const at = formatLsn(start.lsn)
  if (start.parent !== timeline) return `replay followed timeline ${start.parent} instead of ${timeline}`
  // Only PostgreSQL stops at a time, and then it says at which.
  if (target.kind === 'time' && start.reason.startsWith('before ')) return undefined
  const { end } = pieces.at(-1)!
  // No other difference is allowed: a commit can be as short as the header of a page.
  if (start.lsn >= endOfRecords(parseLsn(end))) return undefined
  return `the write-ahead log is damaged: replay ended at ${at} instead of ${end}`
}
