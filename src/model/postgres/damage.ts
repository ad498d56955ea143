// What is recorded about backups and archived WAL that cannot be used.
import { formatLsn, lastLsn, parseSegmentName, segmentStart } from './wal.ts'

export interface BackupPlace {
  clusterId: string
  label: string
}

/** WAL of one timeline that is missing or damaged. Nothing can be replayed across it. */
export interface WalHole {
  timeline: number
  fromLsn: string
  toLsn: string
  kind: 'missing' | 'damaged'
  reason: string
}

export interface ArchiveHole extends WalHole {
  clusterId: string
  epoch: number
}

export type Damage = { backup: BackupPlace; reason: string } | { wal: ArchiveHole }

/** The part of the WAL that is lost with a file: a segment, or everything on a timeline without its history. */
export function holeOfFile(file: string, kind: WalHole['kind'], reason: string): WalHole | undefined {
  const history = /^([0-9A-F]{8})\.history$/.exec(file)
  if (history) {
    const timeline = Number.parseInt(history[1]!, 16)
    return { timeline, fromLsn: '0/0', toLsn: formatLsn(lastLsn), kind, reason }
  }
  const segment = parseSegmentName(file)
  if (segment === undefined) return undefined
  const [from, to] = [segmentStart(segment.number), segmentStart(segment.number + 1n)]
  return { timeline: segment.timeline, fromLsn: formatLsn(from), toLsn: formatLsn(to), kind, reason }
}

/** Finds the archive that a hole belongs to: each piece of a plan has a timeline of its own. */
export function holeInPieces(
  pieces: { clusterId: string; epoch: number; timeline: number }[],
  hole: WalHole,
): ArchiveHole {
  const piece = pieces.findLast(({ timeline }) => timeline === hole.timeline) ?? pieces.at(-1)!
  return { ...hole, clusterId: piece.clusterId, epoch: piece.epoch }
}
