// The recorded end of an epoch's WAL: <root>/<cluster>/archive/<epoch>.end. The receiver fills segments with zeros before it
// writes to them, so a damaged record looks like the end of the log. This file says how far the receiver had acknowledged,
// and what the bytes up to there are. It belongs to the platform; the receiver cannot write it.
import { crc32c } from '../../model/postgres/crc32c.ts'
import { formatLsn, type Lsn, parseLsn, segmentBytes, segmentNumber, segmentStart } from '../../model/postgres/wal.ts'
import { type Micros, parseTime, toRfc3339 } from '../../model/time.ts'
import type { Mark } from './digest.ts'

export interface ArchivePlace {
  clusterId: string
  epoch: number
}

export interface EndRecord extends ArchivePlace {
  timeline: number
  /** The receiver has acknowledged everything before this position. */
  lsn: Lsn
  /** The clock of the source when it was acknowledged. */
  at: Micros
  /** Digests of the segment that contains the end, shortest first. */
  marks: Mark[]
}

/** The segment that contains the last byte before the end, and the number of its bytes up to there. */
export function lastSegment(lsn: Lsn): { number: bigint; bytes: number } {
  const number = segmentNumber(lsn - 1n)
  return { number, bytes: Number(lsn - segmentStart(number)) }
}

/** The second line is the checksum of the first. */
export function renderEnd({ clusterId, epoch, timeline, lsn, at, marks }: EndRecord): string {
  const pairs = marks.map(({ bytes, sha256 }) => [bytes, sha256])
  const line = JSON.stringify({ clusterId, epoch, timeline, end: formatLsn(lsn), at: toRfc3339(at), marks: pairs })
  return `${line}\n${checksum(line)}\n`
}

export function checksum(text: string): string {
  return crc32c(Buffer.from(text)).toString(16).padStart(8, '0')
}

/** What is recorded is intact, but not about this archive. */
export class ForeignRecordError extends Error {}

/** Throws an error that says what is wrong with the text. */
export function parseEnd(text: string, { clusterId, epoch }: ArchivePlace): EndRecord {
  const [line = '', sum] = text.split('\n')
  if (checksum(line) !== sum) throw new Error('its checksum is wrong')
  const found = JSON.parse(line)
  if (typeof found !== 'object' || found === null || Array.isArray(found)) throw new Error('it is not an object')
  const { timeline, end, at, marks } = found
  if (found.clusterId !== clusterId || found.epoch !== epoch)
    throw new ForeignRecordError(`it belongs to epoch ${found.epoch} of cluster ${found.clusterId}`)
  const time = typeof at === 'string' ? parseTime(at) : undefined
  if (!Number.isSafeInteger(timeline) || timeline < 1 || typeof end !== 'string' || time === undefined)
    throw new Error('a field is not valid')
  const lsn = parseLsn(end)
  if (lsn === 0n || !Array.isArray(marks)) throw new Error('a field is not valid')
  return { clusterId, epoch, timeline, lsn, at: time, marks: marks.map(parseMark) }
}

function parseMark(pair: unknown): Mark {
  const [bytes, sha256] = Array.isArray(pair) ? pair : []
  const isLength = Number.isSafeInteger(bytes) && bytes > 0 && bytes <= Number(segmentBytes)
  if (!isLength || !/^[0-9a-f]{64}$/.test(sha256)) throw new Error('a mark is not valid')
  return { bytes, sha256 }
}

const maxMarks = 64

/** Keeps the newest mark and, of the older ones, fewer and fewer. */
export function addMark(marks: Mark[], mark: Mark): Mark[] {
  const kept = marks.length < maxMarks ? marks : marks.filter((_, index) => index % 2 === 1)
  return [...kept.filter(({ bytes }) => bytes < mark.bytes), mark]
}
