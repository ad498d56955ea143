// Selects the archived files that a replay needs, and compares the header of each segment with its name.
import { constants, existsSync } from 'node:fs'
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
import { readUntrustedFile } from '../host/untrusted-file.ts'
import { type PlannedWal, UnusableArchiveError, type WalFile, WalFileError, type WalRange } from './driver.ts'
import { notMounted, walFileError } from './presence.ts'
import { type ArchiveFiles, findSeal } from './wal-record.ts'

const { O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = constants

export interface Archive {
  list(clusterId: string, epoch: number): Promise<WalFile[]>
  path(clusterId: string, epoch: number): string
  files(clusterId: string, epoch: number): ArchiveFiles
}

/** A segment has its full size from the start, even while the receiver writes to it. */
function hasFullSize(file: WalFile): boolean {
  return BigInt(file.bytes) === segmentBytes
}

function listNumbers(files: WalFile[], timeline: number): Set<bigint> {
  const numbers = new Set<bigint>()
  for (const file of files.filter(hasFullSize)) {
    const segment = parseSegmentName(file.name)
    if (segment?.timeline === timeline) numbers.add(segment.number)
  }
  return numbers
}

export function findHole(files: WalFile[], timeline: number, { from, to }: WalRange): WalRange | undefined {
  const numbers = listNumbers(files, timeline)
  const last = segmentNumber(to - 1n)
  let first = segmentNumber(from)
  while (first <= last && numbers.has(first)) first += 1n
  if (first > last) return undefined
  let next = first
  while (next <= last && !numbers.has(next)) next += 1n
  return { from: segmentStart(first), to: segmentStart(next) }
}

export function findArchiveEnd(files: WalFile[], timeline: number, from: Lsn): Lsn | undefined {
  const numbers = listNumbers(files, timeline)
  let next = segmentNumber(from)
  if (!numbers.has(next)) return undefined
  while (numbers.has(next)) next += 1n
  return segmentStart(next)
}

/** A piece and its start, which follows from the piece before it. */
interface Range extends WalPiece {
  from: Lsn
  until: Lsn
}

export async function planWal(archive: Archive, pieces: WalPiece[], from: Lsn): Promise<PlannedWal[]> {
  const planned: PlannedWal[] = []
  const identity: Identity = { system: undefined }
  for (const range of toRanges(archive, pieces, from)) {
    const files = [...planHistory(archive, range), ...(await planSegments(archive, range, identity))]
    const seal = findSeal(archive.files(range.clusterId, range.epoch))
    planned.push(...files.map((file) => ({ ...file, seal: seal(file.name, file.bytes) })))
  }
  return planned
}

function toRanges(archive: Archive, pieces: WalPiece[], from: Lsn): Range[] {
  const ranges: Range[] = []
  for (const piece of pieces) {
    const before = ranges.at(-1)
    const start = before ? switchTimeline(archive, before, piece) : from
    const until = parseLsn(piece.end)
    if (until <= start)
      throw new UnusableArchiveError(
        `the WAL of ${piece.clusterId} ends at ${piece.end}, before its start at ${formatLsn(start)}`,
      )
    ranges.push({ ...piece, from: start, until })
  }
  return ranges
}

/** Ends the range where the timeline of the next piece branched off; returns that position. */
function switchTimeline(archive: Archive, before: Range, next: WalPiece): Lsn {
  if (next.timeline === before.timeline) return before.until
  const name = historyName(next.timeline)
  const history = readHistory(archive, next)
  const entries = [...history.matchAll(/^\s*(\d+)\s+([0-9A-Fa-f]+\/[0-9A-Fa-f]+)/gm)]
  const [, timeline, position] = entries.at(-1) ?? []
  if (Number(timeline) !== before.timeline || position === undefined) {
    throw new UnusableArchiveError(`${name} of ${next.clusterId} does not follow timeline ${before.timeline}`)
  }
  const switchedAt = parseLsn(position)
  if (switchedAt > before.until || switchedAt <= before.from) {
    throw new UnusableArchiveError(
      `${name} of ${next.clusterId} begins at ${position}, which the WAL of ${before.clusterId} lacks`,
    )
  }
  before.until = switchedAt
  return switchedAt
}

const maxHistoryBytes = 1024 ** 2

function readHistory(archive: Archive, piece: WalPiece): string {
  const name = historyName(piece.timeline)
  const subject = `${name} of ${piece.clusterId}`
  const directory = archive.path(piece.clusterId, piece.epoch)
  if (!existsSync(directory)) throw notMounted(directory)
  try {
    const bytes = readUntrustedFile(directory, name, maxHistoryBytes)
    if (bytes === undefined) throw new WalFileError('missing', name, `${subject} is missing from its archive`)
    return bytes.toString()
  } catch (error) {
    throw walFileError(name, subject, error)
  }
}

function planHistory(archive: Archive, piece: Range): PlannedWal[] {
  // Timeline 1 has no history file.
  if (piece.timeline === 1) return []
  const name = historyName(piece.timeline)
  const path = `${archive.path(piece.clusterId, piece.epoch)}/${name}`
  return [{ path, name, bytes: Buffer.byteLength(readHistory(archive, piece)) }]
}

/** The system identifier, which must be the same in all segments. */
interface Identity {
  system: bigint | undefined
}

// The receiver renames a segment when it is complete, so one failure is retried.
async function planSegments(archive: Archive, piece: Range, identity: Identity): Promise<PlannedWal[]> {
  return checkSegments(archive, piece, identity).catch(() => checkSegments(archive, piece, identity))
}

async function checkSegments(archive: Archive, piece: Range, identity: Identity): Promise<PlannedWal[]> {
  const files = new Map((await archive.list(piece.clusterId, piece.epoch)).map((file) => [file.name, file]))
  const directory = archive.path(piece.clusterId, piece.epoch)
  if (!existsSync(directory)) throw notMounted(directory)
  const planned: PlannedWal[] = []
  for (let number = segmentNumber(piece.from); number <= segmentNumber(piece.until - 1n); number += 1n) {
    const name = segmentName(piece.timeline, number)
    const file = files.get(name) ?? files.get(`${name}.partial`)
    const subject = `WAL segment ${file?.name ?? name} of ${piece.clusterId}`
    if (file === undefined) throw new WalFileError('missing', name, `${subject} is missing from its archive`)
    const path = `${directory}/${file.name}`
    if (!hasFullSize(file)) throw new WalFileError('damaged', name, `${subject} has ${file.bytes} bytes`)
    const left = piece.until - segmentStart(number)
    const bytes = left < segmentBytes ? left : segmentBytes
    await checkSegment(path, { piece, number, bytes, identity }).catch((error) => {
      throw walFileError(name, subject, error)
    })
    planned.push({ path, name, bytes: Number(bytes) })
  }
  return planned
}

const pageBytes = 8192n

interface Expectation {
  piece: Range
  number: bigint
  bytes: bigint
  identity: Identity
}

/**
 * Compares the header of the first page with the expected cluster and position. In a segment that is used in part, the
 * last used page must have the right position too: the receiver fills a segment with zeros before it writes WAL to it.
 */
async function checkSegment(path: string, { piece, number, bytes, identity }: Expectation): Promise<void> {
  const name = segmentName(piece.timeline, number)
  const subject = `WAL segment ${name} of ${piece.clusterId}`
  const start = segmentStart(number)
  await using file = await open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK)
  const first = await readPage(file, 0n)
  identity.system ??= first.system
  if (first.position !== start || first.timeline > piece.timeline || first.system !== identity.system) {
    throw new WalFileError('damaged', name, `${subject} is damaged or belongs to another cluster`)
  }
  // A complete segment may end with zeros: the server leaves the rest empty when it switches to the next one.
  if (bytes === segmentBytes) return
  const lastPage = ((bytes - 1n) / pageBytes) * pageBytes
  const last = await readPage(file, lastPage)
  if (last.position !== start + lastPage)
    throw new WalFileError('damaged', name, `${subject} ends before ${formatLsn(start + bytes)}`)
}

// XLogLongPageHeaderData: magic, flags, timeline, position, remaining length; and on the first page of a segment, after
// four bytes of padding, the system identifier.
async function readPage(file: Awaited<ReturnType<typeof open>>, at: bigint) {
  const { buffer } = await file.read(Buffer.alloc(32), 0, 32, Number(at))
  return { timeline: buffer.readUInt32LE(4), position: buffer.readBigUInt64LE(8), system: buffer.readBigUInt64LE(24) }
}
