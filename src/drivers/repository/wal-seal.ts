// Records the digests of complete files while an archive is being written. Files that were completed while nobody watched
// are verified first, so that damage is not taken for what was archived.
import { existsSync } from 'node:fs'
import {
  formatLsn,
  type Lsn,
  parseSegmentName,
  segmentBytes,
  segmentName,
  segmentNumber,
} from '../../model/postgres/wal.ts'
import { digestFile, type Mark, RunningDigest, readMarks } from './digest.ts'
import { type Sealing, type WalFile, WalFileError } from './driver.ts'
import { appendDurably } from './durable-file.ts'
import { brokenDigest, renderHeader, renderSeal } from './seal.ts'
import { checkSegmentRecords } from './wal-check.ts'
import type { ReadSegment } from './wal-cut.ts'
import { type ArchiveFiles, findSeals, marksOf, readableEnd } from './wal-record.ts'

/** Bounds how long one call takes; the rest follows with the next one. */
const maxSealed = 8

/** What is known about the files of an archive. */
interface Known {
  /** The files with a digest, and those that are gone. */
  names: Set<string>
  damaged: Set<string>
  /** All files before this segment are done; -1 before the first look. */
  before: bigint
  /** Segments up to this one may have been completed while nobody watched. */
  unwatched: bigint
  seenAtMs: number
}

/** The archive of a server that writes is looked at every second. */
const watchedMs = 60_000

export interface SegmentSealer {
  sealSegments(files: ArchiveFiles, read: ReadSegment, timeline: number, before: Lsn): Promise<Sealing>
}

export function segmentSealer(now = Date.now): SegmentSealer {
  const archives = new Map<string, Known>()
  return {
    async sealSegments(files, read, timeline, before) {
      const key = `${files.clusterId}/${files.epoch}`
      const known = archives.get(key) ?? load(files)
      archives.set(key, known)
      const limit = segmentNumber(before)
      if (now() - known.seenAtMs > watchedMs) known.unwatched = limit
      known.seenAtMs = now()
      const damaged = known.before < 0n ? [...known.damaged].map((name) => damageOf(files, name)) : []
      if (known.before >= limit) return { count: 0, damaged }
      const listed = await listComplete(files, timeline, known.before, limit)
      const due = listed.filter(({ name }) => !known.names.has(name))
      let count = 0
      for (const file of due.slice(0, maxSealed)) {
        const sealed = await sealFile({ files, read, known, before }, file)
        if (sealed === 'incomplete') return { count, damaged }
        if (sealed) damaged.push(sealed)
        count++
      }
      if (due.length <= maxSealed) known.before = limit
      return { count, damaged }
    },
  }
}

function load(files: ArchiveFiles): Known {
  const seals = [...findSeals(files).files]
  const damaged = seals.filter(([, { sha256 }]) => sha256 === brokenDigest).map(([name]) => name)
  const names = seals.map(([name]) => name)
  return { names: new Set(names), damaged: new Set(damaged), before: -1n, unwatched: -1n, seenAtMs: 0 }
}

function damageOf({ clusterId }: ArchiveFiles, name: string, at = ''): WalFileError {
  return new WalFileError('damaged', name, `WAL segment ${name} of ${clusterId} is damaged${at}`)
}

interface Look {
  files: ArchiveFiles
  read: ReadSegment
  known: Known
  before: Lsn
}

/** Returns the damage of a file that is damaged. */
async function sealFile(look: Look, file: WalFile): Promise<WalFileError | 'incomplete' | undefined> {
  const { files, known } = look
  const isWatched = (parseSegmentName(file.name)?.number ?? 0n) > known.unwatched
  const found = isWatched ? undefined : await findDamage(look, file.name)
  if (found === 'incomplete') return found
  const mark = found ? { bytes: file.bytes, sha256: brokenDigest } : await digestOf(files, file)
  if (mark) await appendSeal(files, file.name, mark)
  known.names.add(file.name)
  if (mark?.sha256 !== brokenDigest) return undefined
  known.damaged.add(file.name)
  return found ?? damageOf(files, file.name)
}

/** Verifies a segment that has no digest, starting in the one before it unless that is damaged. */
async function findDamage(
  { files, read, known, before }: Look,
  name: string,
): Promise<WalFileError | 'incomplete' | undefined> {
  const segment = parseSegmentName(name)
  if (segment === undefined) return undefined
  const previous = segmentName(segment.timeline, segment.number - 1n)
  const withBefore = !known.damaged.has(previous) && existsSync(`${files.directory}/${previous}`)
  try {
    let found = await checkSegmentRecords(read, segment.number, before, withBefore)
    // A record that reaches into this segment may be damaged in the one before.
    if (found.is === 'damaged' && withBefore && (await isAltered(files, previous)))
      found = await checkSegmentRecords(read, segment.number, before, false)
    if (found.is === 'damaged') return damageOf(files, name, ` at ${formatLsn(found.at)}`)
    return found.is === 'intact' ? undefined : found.is
  } catch (error) {
    // An error of another segment is found when that one is looked at.
    if (!(error instanceof WalFileError) || error.kind === 'missing') throw error
    return error.file === name ? error : undefined
  }
}

async function isAltered(files: ArchiveFiles, name: string): Promise<boolean> {
  const seal = findSeals(files).files.get(name)
  const [mark] = await readMarks(files.directory, name, [Number(segmentBytes)])
  return seal !== undefined && mark?.sha256 !== seal.sha256
}

/**
 * The complete files before this segment, in the order of the log. Once the archive was listed, the names of further
 * segments are known: listing thousands of files for every new one would be slow. Everything before the limit is
 * acknowledged, so also a segment that the receiver has yet to rename is complete.
 */
async function listComplete(files: ArchiveFiles, timeline: number, listed: bigint, limit: bigint): Promise<WalFile[]> {
  if (listed < 0n) {
    const found = (await files.list()).filter((file) => isComplete(file, timeline, limit))
    const named = found.map(({ name, bytes }) => ({ name: name.replace('.partial', ''), bytes }))
    return named.sort((a, b) => (a.name < b.name ? -1 : 1))
  }
  const count = Number(limit - listed)
  return Array.from({ length: count }, (_, n) => {
    return { name: segmentName(timeline, listed + BigInt(n)), bytes: Number(segmentBytes) }
  })
}

function isComplete({ name, bytes }: WalFile, timeline: number, before: bigint): boolean {
  if (name.endsWith('.history')) return true
  const segment = parseSegmentName(name)
  if (segment === undefined || BigInt(bytes) !== segmentBytes) return false
  return segment.timeline === timeline && segment.number < before
}

/** Undefined if the file is gone. A file that lacks a mark recorded earlier has been damaged since. */
async function digestOf(files: ArchiveFiles, { name, bytes }: WalFile): Promise<Mark | undefined> {
  const expected = marksOf(readableEnd(files), name)
  const found: Mark[] = []
  const lengths = expected.map((mark) => mark.bytes)
  const digest = new RunningDigest()
  const isThere = await digestFile(files.directory, name, digest, bytes, lengths, (mark) => found.push(mark))
  if (!isThere) return undefined
  const hasMark = (mark: Mark) => found.some((each) => each.bytes === mark.bytes && each.sha256 === mark.sha256)
  return expected.every(hasMark) ? digest.mark() : { bytes, sha256: brokenDigest }
}

async function appendSeal(files: ArchiveFiles, name: string, mark: Mark): Promise<void> {
  const path = `${files.parent}/${files.sealsName}`
  const header = existsSync(path) ? '' : renderHeader(files)
  await appendDurably(path, header + renderSeal(name, mark))
}
