// The WAL that a restore replays, and the check that it has been replayed.
import type { RestorePlan } from '../../../model/postgres/restore.ts'
import { endOfRecords, formatLsn, type Lsn, parseLsn, segmentBytes } from '../../../model/postgres/wal.ts'
import type { PlannedWal } from '../../repository/driver.ts'

/** Renders the plan for copy.sh: the total size in bytes, and then a line per WAL file. */
export function renderPlan(wal: PlannedWal[], backupBytes: number): string {
  const total = backupBytes + wal.length * Number(segmentBytes)
  return `${total}\n${wal.map(planLine).join('')}`
}

function planLine({ bytes, name, path, seal }: PlannedWal): string {
  return `${bytes} ${name} ${seal?.bytes ?? 0} ${seal?.sha256 ?? '-'} ${singleLine(path)}\n`
}

function singleLine(path: string): string {
  if (path.includes('\n')) throw new Error(`the path ${JSON.stringify(path)} contains a line break`)
  return path
}

export function planBytes(plan: string): number {
  return Number.parseInt(plan, 10)
}

/** Sums the sizes without parsing JSON, because the manifest may be damaged; the verification reports that. */
export function manifestBytes(manifest: string): number {
  let bytes = 0
  for (const match of manifest.matchAll(/"Size": (\d+)/g)) bytes += Number(match[1])
  return bytes
}

/** The branch of a timeline off its parent, from its history file. */
export interface TimelineStart {
  timeline: number
  parent: number
  lsn: Lsn
  reason: string
}

/** The last line of a history file describes the timeline itself, the lines before it its ancestors. */
export function readTimelineStart(timeline: number, history: string): TimelineStart {
  const lines = history.split('\n').filter((line) => /^\s*\d/.test(line))
  const match = /^\s*(\d+)\s+(\S+)\s*(.*)$/.exec(lines.at(-1) ?? '')
  if (!match) throw new Error(`the history of timeline ${timeline} is empty`)
  return { timeline, parent: Number(match[1]), lsn: parseLsn(match[2]!), reason: match[3]! }
}

/**
 * Explains what was not replayed; undefined if replay reached the end of the plan. PostgreSQL takes a damaged record for the end of
 * the WAL and promotes the cluster there, so its own success means nothing without this check.
 */
export function findShortfall(
  start: TimelineStart,
  { pieces, timeline }: Pick<RestorePlan, 'pieces' | 'timeline'>,
): string | undefined {
  const at = formatLsn(start.lsn)
  if (start.parent !== timeline) return `replay followed timeline ${start.parent} instead of ${timeline}`
  const { end } = pieces.at(-1)!
  // No other difference is tolerated: a commit record can be as short as a page header.
  if (start.lsn >= endOfRecords(parseLsn(end))) return undefined
  return `the write-ahead log is damaged: replay ended at ${at} instead of ${end}`
}
