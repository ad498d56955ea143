// Places in the write-ahead log. An LSN is a bigint here and `16/B374D848` where people and PostgreSQL see it.
export type Lsn = bigint

/** No log reaches it. */
export const lastLsn: Lsn = (1n << 64n) - 1n

/** The clusters of the platform have segments of PostgreSQL's default size. */
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
 * The end of the last record before the place where the next one goes. At the end of a page that place lies behind the
 * header of the following one, which is longer on the first page of a segment and not written before the record is.
 */
export function endOfRecords(insertLsn: Lsn): Lsn {
  if (insertLsn % segmentBytes === segmentHeaderBytes) return insertLsn - segmentHeaderBytes
  return insertLsn % pageBytes === headerBytes ? insertLsn - headerBytes : insertLsn
}

/** The number of the segment that holds the byte at this place. */
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
  /** The receiver is still writing to it. */
  partial: boolean
}

/** Undefined for what is not a segment, such as a history file. */
export function parseSegmentName(name: string): SegmentFile | undefined {
  const match = /^([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})(\.partial)?$/.exec(name)
  if (!match) return undefined
  const number = BigInt(`0x${match[2]}`) * segmentsPerId + BigInt(`0x${match[3]}`)
  return { timeline: Number.parseInt(match[1]!, 16), number, partial: match[4] !== undefined }
}

export function historyName(timeline: number): string {
  return `${timeline.toString(16).toUpperCase().padStart(8, '0')}.history`
}

/** A stretch of one archive: what a restore replays, in order. The last one ends at the cut. */
export interface WalPiece {
  clusterId: string
  epoch: number
  /** The timeline the source wrote on at its end. */
  timeline: number
  /** Nothing past this place is replayed. */
  end: string
}
