// Records how far the receiver of an archive has acknowledged, and finds what is recorded about the archive. One process at a
// time records for a cluster.
import { segmentName } from '../../model/postgres/wal.ts'
import { removeAbandonedFiles } from '../host/atomic-file.ts'
import { readTextIfPresent } from '../host/file.ts'
import { digestFile, type Mark, RunningDigest } from './digest.ts'
import { type AcknowledgedEnd, UnusableArchiveError, type WalFile } from './driver.ts'
import { replaceFile } from './durable-file.ts'
import {
  type ArchivePlace,
  addMark,
  type EndRecord,
  ForeignRecordError,
  lastSegment,
  parseEnd,
  renderEnd,
} from './end.ts'
import { isFileError } from './presence.ts'
import { parseSeals, renderHeader, renderSeal, type Seals } from './seal.ts'

/** The places of an archive and of what is recorded about it. */
export interface ArchiveFiles extends ArchivePlace {
  /** The directory of the receiver. */
  directory: string
  /** The directory of the two files that follow. */
  parent: string
  endName: string
  sealsName: string
  list(): Promise<WalFile[]>
}

/** What is known of the segment that is being written. */
interface Progress {
  record: EndRecord | undefined
  segment: bigint
  digest: RunningDigest
  /** The segment no longer has a recorded mark, so further marks would hide the damage. */
  isBroken: boolean
}

export interface EndRecorder {
  recordEnd(files: ArchiveFiles, end: AcknowledgedEnd): Promise<void>
}

export function endRecorder(): EndRecorder {
  const progress = new Map<string, Progress>()
  return {
    async recordEnd(files, end) {
      const key = `${files.clusterId}/${files.epoch}`
      const before = progress.get(key) ?? (await loadProgress(files))
      // Another process may have recorded more meanwhile, such as the one that deleted the cluster.
      const stored = readableEnd(files)
      if (stored && stored.lsn >= end.lsn) return
      const next = await advance(files, before, end)
      await replaceFile(files.parent, files.endName, renderEnd(next.record))
      progress.set(key, next)
    },
  }
}

/** Throws if the record is not readable or belongs to another cluster. */
export function findEnd(files: ArchiveFiles): EndRecord | undefined {
  const text = readTextIfPresent(`${files.parent}/${files.endName}`)
  return text === undefined ? undefined : parseEnd(text, files)
}

/** Throws an UnusableArchiveError if the seals are not readable or belong to another cluster. */
export function findSeals(files: ArchiveFiles): Seals {
  try {
    return parseSeals(readTextIfPresent(`${files.parent}/${files.sealsName}`) ?? '', files)
  } catch (error) {
    if (!(error instanceof ForeignRecordError || isFileError(error))) throw error
    throw new UnusableArchiveError(`the seals of its archive cannot be used: ${(error as Error).message}`)
  }
}

/**
 * Returns a function that finds the recorded digest of the first bytes of a file. Until it is complete, the segment that
 * contains the recorded end has digests of parts of it. The longest one within what is needed shows that the file is the
 * right one; its last records have checksums of their own, and damage after what is needed does not matter. Throws if what is recorded belongs to another cluster.
 */
export function findSeal(files: ArchiveFiles): (name: string, bytes: number) => Mark | undefined {
  const seals = findSeals(files)
  const record = readableEnd(files, (error) => {
    if (error instanceof ForeignRecordError)
      throw new UnusableArchiveError(`the record of the end of its archive: ${error.message}`)
  })
  return (name, bytes) => {
    const marks = marksOf(record, name)
    return seals.files.get(name) ?? marks.findLast((mark) => mark.bytes <= bytes) ?? marks[0]
  }
}

/** Removes the seals of files that retention has removed. */
export async function trimSeals(files: ArchiveFiles, removed: Set<string>): Promise<void> {
  const kept = [...findSeals(files).files].filter(([name]) => !removed.has(name))
  const text = renderHeader(files) + kept.map(([name, mark]) => renderSeal(name, mark)).join('')
  await replaceFile(files.parent, files.sealsName, text)
}

async function loadProgress(files: ArchiveFiles): Promise<Progress> {
  await removeAbandonedFiles(files.parent)
  const record = readableEnd(files)
  if (!record) return { record, segment: -1n, digest: new RunningDigest(), isBroken: false }
  const { number, bytes } = lastSegment(record.lsn)
  const digest = new RunningDigest()
  const name = segmentName(record.timeline, number)
  const found: Mark[] = []
  const lengths = record.marks.map((mark) => mark.bytes)
  const isThere = await digestFile(files.directory, name, digest, bytes, lengths, (mark) => found.push(mark))
  const hasMark = ({ bytes: length, sha256 }: Mark) =>
    found.some((mark) => mark.bytes === length && mark.sha256 === sha256)
  return { record, segment: number, digest, isBroken: isThere && !record.marks.every(hasMark) }
}

/** An unreadable record is replaced: the receiver has acknowledged the new end in any case. */
export function readableEnd(
  files: ArchiveFiles,
  onError: (error: unknown) => void = () => undefined,
): EndRecord | undefined {
  try {
    return findEnd(files)
  } catch (error) {
    onError(error)
    return undefined
  }
}

async function advance(files: ArchiveFiles, before: Progress, { isMissing, ...end }: AcknowledgedEnd) {
  const { clusterId, epoch } = files
  const { number, bytes } = lastSegment(end.lsn)
  const isSame = before.segment === number && before.record?.timeline === end.timeline
  const digest = isSame ? before.digest : new RunningDigest()
  const isBroken = isSame && before.isBroken
  const marks = isSame ? before.record!.marks : []
  // A digest of what is there instead would hide that something is missing.
  const isThere = !isMissing && (await digestFile(files.directory, segmentName(end.timeline, number), digest, bytes))
  const record: EndRecord = {
    clusterId,
    epoch,
    ...end,
    marks: isThere && !isBroken ? addMark(marks, digest.mark()) : marks,
  }
  return { record, segment: number, digest, isBroken }
}

/** The recorded marks of this file, if it is the one that contains the recorded end. */
export function marksOf(record: EndRecord | undefined, name: string): Mark[] {
  if (!record) return []
  return segmentName(record.timeline, lastSegment(record.lsn).number) === name ? record.marks : []
}
