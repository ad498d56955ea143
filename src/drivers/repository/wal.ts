// Which files of an archive a replay needs. Nothing here trusts a name: a segment also says itself what it is.
import { open } from 'node:fs/promises'
import {
  formatLsn,
  historyName,
  type Lsn,
  parseLsn,
  parseSegmentName,
  segmentBytes,
  segmentName,
  segmentNumber,
  segmentStart,
  type WalPiece,
} from '../../model/postgres/wal.ts'
import { readTextIfPresent } from '../host/file.ts'
import type { PlannedWal, WalFile } from './driver.ts'

export interface Archive {
  list(clusterId: string, epoch: number): Promise<WalFile[]>
  path(clusterId: string, epoch: number): string
}

/** A segment that is being written has its full size from the beginning. */
function isWhole(file: WalFile): boolean {
  return BigInt(file.bytes) === segmentBytes
}

export function findArchiveEnd(files: WalFile[], timeline: number, from: Lsn): Lsn | undefined {
  const numbers = new Set<bigint>()
  for (const file of files.filter(isWhole)) {
    const segment = parseSegmentName(file.name)
    if (segment?.timeline === timeline) numbers.add(segment.number)
  }
  let next = segmentNumber(from)
  if (!numbers.has(next)) return undefined
  while (numbers.has(next)) next += 1n
  return segmentStart(next)
}

/** A piece with its first place, which follows from the pieces before it. */
interface Stretch extends WalPiece {
  from: Lsn
  until: Lsn
}

export async function planWal(archive: Archive, pieces: WalPiece[], from: Lsn): Promise<PlannedWal[]> {
  const planned: PlannedWal[] = []
  const identity: Identity = { system: undefined }
  for (const stretch of toStretches(archive, pieces, from)) {
    planned.push(...planHistory(archive, stretch))
    planned.push(...(await planSegments(archive, stretch, identity)))
  }
  return planned
}

function toStretches(archive: Archive, pieces: WalPiece[], from: Lsn): Stretch[] {
  const stretches: Stretch[] = []
  for (const piece of pieces) {
    const before = stretches.at(-1)
    const start = before ? leave(archive, before, piece) : from
    const until = parseLsn(piece.end)
    if (until <= start)
      throw new Error(`WAL of ${piece.clusterId} to ${piece.end} is asked for from ${formatLsn(start)}`)
    stretches.push({ ...piece, from: start, until })
  }
  return stretches
}

/** Ends the stretch at the place where the next piece left its timeline, and answers with this place. */
function leave(archive: Archive, before: Stretch, next: WalPiece): Lsn {
  if (next.timeline === before.timeline) return before.until
  const name = historyName(next.timeline)
  const history = readHistory(archive, next)
  const entries = [...history.matchAll(/^\s*(\d+)\s+([0-9A-Fa-f]+\/[0-9A-Fa-f]+)/gm)]
  const [, timeline, place] = entries.at(-1) ?? []
  if (Number(timeline) !== before.timeline || place === undefined) {
    throw new Error(`${name} of ${next.clusterId} does not follow timeline ${before.timeline}`)
  }
  const switchedAt = parseLsn(place)
  if (switchedAt > before.until || switchedAt <= before.from) {
    throw new Error(`${name} of ${next.clusterId} begins at ${place}, which the WAL of ${before.clusterId} lacks`)
  }
  before.until = switchedAt
  return switchedAt
}

function readHistory(archive: Archive, piece: WalPiece): string {
  const name = historyName(piece.timeline)
  const text = readTextIfPresent(`${archive.path(piece.clusterId, piece.epoch)}/${name}`)
  if (text === undefined) throw new Error(`${name} of ${piece.clusterId} is missing in its archive`)
  return text
}

function planHistory(archive: Archive, piece: Stretch): PlannedWal[] {
  // The first timeline has no history.
  if (piece.timeline === 1) return []
  const name = historyName(piece.timeline)
  const path = `${archive.path(piece.clusterId, piece.epoch)}/${name}`
  return [{ path, name, bytes: Buffer.byteLength(readHistory(archive, piece)) }]
}

interface Identity {
  system: bigint | undefined
}

// While it is looked at, a segment may be finished, which renames it. The second look decides.
async function planSegments(archive: Archive, piece: Stretch, identity: Identity): Promise<PlannedWal[]> {
  return lookAtSegments(archive, piece, identity).catch(() => lookAtSegments(archive, piece, identity))
}

async function lookAtSegments(archive: Archive, piece: Stretch, identity: Identity): Promise<PlannedWal[]> {
  const files = new Map((await archive.list(piece.clusterId, piece.epoch)).map((file) => [file.name, file]))
  const directory = archive.path(piece.clusterId, piece.epoch)
  const planned: PlannedWal[] = []
  for (let number = segmentNumber(piece.from); number <= segmentNumber(piece.until - 1n); number += 1n) {
    const name = segmentName(piece.timeline, number)
    const file = files.get(name) ?? files.get(`${name}.partial`)
    if (file === undefined) throw new Error(`WAL segment ${name} of ${piece.clusterId} is missing in its archive`)
    const path = `${directory}/${file.name}`
    if (!isWhole(file)) throw new Error(`WAL segment ${file.name} of ${piece.clusterId} has ${file.bytes} bytes`)
    const left = piece.until - segmentStart(number)
    const bytes = left < segmentBytes ? left : segmentBytes
    await checkSegment(path, { piece, number, bytes, identity })
    planned.push({ path, name, bytes: Number(bytes) })
  }
  return planned
}

const pageBytes = 8192n

interface Expectation {
  piece: Stretch
  number: bigint
  bytes: bigint
  identity: Identity
}

/**
 * The first page names the system and the place, and the last page before a cut names its place: past what was received
 * a segment is filled with zeros.
 */
async function checkSegment(path: string, { piece, number, bytes, identity }: Expectation): Promise<void> {
  const what = `WAL segment ${segmentName(piece.timeline, number)} of ${piece.clusterId}`
  const start = segmentStart(number)
  await using file = await open(path, 'r')
  const first = await readPage(file, 0n)
  identity.system ??= first.system
  if (first.place !== start || first.timeline > piece.timeline || first.system !== identity.system) {
    throw new Error(`${what} is damaged or belongs to another cluster`)
  }
  // A whole segment may end with zeros: the server leaves the rest of one that it switched away from.
  if (bytes === segmentBytes) return
  const lastPage = ((bytes - 1n) / pageBytes) * pageBytes
  const last = await readPage(file, lastPage)
  if (last.place !== start + lastPage) throw new Error(`${what} ends before ${formatLsn(start + bytes)}`)
}

// XLogLongPageHeaderData: magic, flags, timeline, place, remaining length, and on the first page of a segment, after
// four bytes of padding, the system identifier.
async function readPage(file: Awaited<ReturnType<typeof open>>, at: bigint) {
  const { buffer } = await file.read(Buffer.alloc(32), 0, 32, Number(at))
  return { timeline: buffer.readUInt32LE(4), place: buffer.readBigUInt64LE(8), system: buffer.readBigUInt64LE(24) }
}
