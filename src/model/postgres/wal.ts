// Positions in the WAL. An LSN is a bigint here and `16/B374D848` in the API and in PostgreSQL.
export type Lsn = bigint

/** Greater than any LSN in use. */
export const lastLsn: Lsn = (1n << 64n) - 1n

/** All clusters use PostgreSQL's default segment size. */
export const segmentBytes = 16n * 1024n * 1024n
const segmentsPerId = 0x1_0000_0000n / segmentBytes

export function parseLsn(text: string): Lsn {
  const match = /^([0-9A-Fa-f]{1,8})\/([0-9A-Fa-f]{1,8})$/.exec(text)
  if (!match) throw new Error(`not an LSN: ${JSON.stringify(text)}`)
  return (BigInt(`0x${match[1]}`) << 32n) | BigInt(`0x${match[2]}`)
}

export function formatLsn(lsn: Lsn): string {
  return `${(lsn >> 32n).toString(16).toUpperCase()}/${(lsn & 0xffff_ffffn).toString(16).toUpperCase()}`
}

const pageBytes = 8192n
const headerBytes = 24n
const segmentHeaderBytes = 40n

/**
 * The end of the last record before an insert position. At a page boundary the insert position is after the header of
 * the next page, which is not written before the next record is and is longer on the first page of a segment.
 */
export function endOfRecords(insertLsn: Lsn): Lsn {
  if (insertLsn % segmentBytes === segmentHeaderBytes) return insertLsn - segmentHeaderBytes
  return insertLsn % pageBytes === headerBytes ? insertLsn - headerBytes : insertLsn
}

/** The number of the segment that contains this position. */
export function segmentNumber(lsn: Lsn): bigint {
  return lsn / segmentBytes
}

export function segmentStart(number: bigint): Lsn {
  return number * segmentBytes
}

export function segmentName(timeline: number, number: bigint): string {
  const part = (value: bigint) => value.toString(16).toUpperCase().padStart(8, '0')
  return part(BigInt(timeline)) + part(number / segmentsPerId) + part(number % segmentsPerId)
}

export interface SegmentFile {
  timeline: number
  number: bigint
  /** Whether pg_receivewal is still writing to it. */
  partial: boolean
}

/** Undefined for other files, such as a timeline history. */
export function parseSegmentName(name: string): SegmentFile | undefined {
  const match = /^([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})(\.partial)?$/.exec(name)
  if (!match) return undefined
  const number = BigInt(`0x${match[2]}`) * segmentsPerId + BigInt(`0x${match[3]}`)
  return { timeline: Number.parseInt(match[1]!, 16), number, partial: match[4] !== undefined }
}

export function historyName(timeline: number): string {
  return `${timeline.toString(16).toUpperCase().padStart(8, '0')}.history`
}

/** A part of one archive epoch. A restore replays its pieces in order; the last one ends at the restore target. */
export interface WalPiece {
  clusterId: string
  epoch: number
  /** The source's timeline at the end of the piece. */
  timeline: number
  /** The LSN at which replay stops. */
  end: string
}
