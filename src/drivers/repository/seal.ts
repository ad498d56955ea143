// Digests of the complete files of an epoch's archive: <root>/<cluster>/archive/<epoch>.seals. Clusters that were restored
// from the same source have the same system identifier, timeline and positions, so a file does not say whose it is; its
// seal does. The file grows by a line per segment and belongs to the platform; the receiver cannot write it.
import type { Mark } from './digest.ts'
import { type ArchivePlace, checksum, ForeignRecordError } from './end.ts'

/** The seal of a file that was already damaged when it was sealed. No content has this digest. */
export const brokenDigest = '0'.repeat(64)

export interface Seals {
  /** By file name. */
  files: Map<string, Mark>
}

export function renderHeader({ clusterId, epoch }: ArchivePlace): string {
  return `seals of cluster ${clusterId} epoch ${epoch}\n`
}

/** Starts with a line break, because a crash may have left an incomplete line before it. */
export function renderSeal(name: string, { bytes, sha256 }: Mark): string {
  const line = `${name} ${bytes} ${sha256}`
  return `\n${line} ${checksum(line)}`
}

const headerPattern = /^seals of cluster (\S+) epoch (\d+)$/
const linePattern = /^(([0-9A-F]{24}|[0-9A-F]{8}\.history) (\d{1,9}) ([0-9a-f]{64})) ([0-9a-f]{8})$/

/**
 * Lines that are incomplete or damaged are ignored, so that their files count as not sealed. Throws if the seals belong to
 * another cluster.
 */
export function parseSeals(text: string, place: ArchivePlace): Seals {
  const files = new Map<string, Mark>()
  const lines = text.split('\n')
  const header = headerPattern.exec(lines[0]!)
  if (header && (header[1] !== place.clusterId || Number(header[2]) !== place.epoch))
    throw new ForeignRecordError(`they belong to epoch ${header[2]} of cluster ${header[1]}`)
  for (const each of lines) {
    const [, line, name, bytes, sha256, sum] = linePattern.exec(each) ?? []
    if (line !== undefined && checksum(line) === sum) files.set(name!, { bytes: Number(bytes), sha256: sha256! })
  }
  return { files }
}
