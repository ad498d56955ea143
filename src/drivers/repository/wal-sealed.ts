// Compares archived files with their recorded digests.
import { createHash } from 'node:crypto'
import { lstat } from 'node:fs/promises'
import { historyName, lastLsn, segmentName, segmentNumber } from '../../model/postgres/wal.ts'
import { type Mark, readMarks } from './digest.ts'
import { type SealedFiles, WalFileError, type WalRange } from './driver.ts'
import type { ReadSegment } from './wal-cut.ts'
import { type ArchiveFiles, findSeals } from './wal-record.ts'

export function listSealed(files: ArchiveFiles, timeline: number, range: WalRange, limit: number): SealedFiles {
  const seals = findSeals(files).files
  const sealed = (name: string) => {
    const seal = seals.get(name)
    return seal ? [{ name, sha256: seal.sha256 }] : []
  }
  const found: SealedFiles['files'] = []
  const last = segmentNumber(range.to - 1n)
  for (let number = segmentNumber(range.from); number <= last && found.length < limit; number += 1n)
    found.push(...sealed(segmentName(timeline, number)))
  // The segments cannot be replayed without the history of their timeline.
  if (found.length > 0) found.unshift(...sealed(historyName(timeline)))
  return { directory: files.directory, files: found }
}

/**
 * Reads segments and compares them with their digests. A segment of a sibling cluster has intact records too, and their
 * times would decide about commits that it does not have.
 */
export function sealedReader(files: ArchiveFiles, timeline: number, read: ReadSegment): ReadSegment {
  const seals = findSeals(files).files
  return async (number) => {
    const name = segmentName(timeline, number)
    const bytes = await read(number)
    const seal = seals.get(name)
    if (!seal || createHash('sha256').update(bytes).digest('hex') === seal.sha256) return bytes
    throw new WalFileError('damaged', name, `WAL file ${name} of ${files.clusterId} differs from its recorded digest`)
  }
}

/** First looks whether all of them are there, which costs less than reading. */
export async function isIntact(files: ArchiveFiles, hole: WalRange & { timeline: number }): Promise<boolean> {
  const seals = findSeals(files).files
  const names = namesOf(hole)
  for (const name of names) {
    const seal = seals.get(name)
    if (!seal || (await sizeOf(`${files.directory}/${name}`)) !== seal.bytes) return false
  }
  for (const name of names) if (!(await hasDigest(files, name, seals.get(name)!))) return false
  return true
}

/** Without its history a whole timeline is lost. */
function namesOf({ timeline, from, to }: WalRange & { timeline: number }): string[] {
  if (to === lastLsn) return [historyName(timeline)]
  const [first, last] = [segmentNumber(from), segmentNumber(to - 1n)]
  return Array.from({ length: Number(last - first) + 1 }, (_, n) => segmentName(timeline, first + BigInt(n)))
}

async function hasDigest({ directory }: ArchiveFiles, name: string, { bytes, sha256 }: Mark): Promise<boolean> {
  // An unreadable file stays damaged.
  const [found] = await readMarks(directory, name, [bytes]).catch(() => [])
  return found?.sha256 === sha256
}

async function sizeOf(path: string): Promise<number | undefined> {
  const found = await lstat(path).catch(() => undefined)
  return found?.isFile() ? found.size : undefined
}
