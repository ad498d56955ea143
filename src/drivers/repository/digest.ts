// Digests of archived files, which their receiver may still be writing to. They are computed in pieces, so that the event
// loop never waits for a whole segment.
import { createHash, type Hash } from 'node:crypto'
import { closeSync, read } from 'node:fs'
import { promisify } from 'node:util'
import { openUntrustedFile } from '../host/untrusted-file.ts'

/** The SHA-256 digest of the first bytes of a file. */
export interface Mark {
  bytes: number
  sha256: string
}

/** A digest to which the bytes that follow can be added. */
export class RunningDigest {
  bytes = 0
  private readonly hash: Hash = createHash('sha256')

  add(content: Buffer): void {
    this.hash.update(content)
    this.bytes += content.length
  }

  mark(): Mark {
    return { bytes: this.bytes, sha256: this.hash.copy().digest('hex') }
  }
}

const readAsync = promisify(read)
const chunkBytes = 512 * 1024

/**
 * Adds the bytes of an archived file up to this length. Calls `onMark` at each of the lengths in `stops`, which ascend. A
 * segment that the receiver has not completed is found too. Returns false if the file is missing or too short.
 */
export async function digestFile(
  directory: string,
  name: string,
  digest: RunningDigest,
  until: number,
  stops: number[] = [],
  onMark: (mark: Mark) => void = () => undefined,
): Promise<boolean> {
  const descriptor = openUntrustedFile(directory, name) ?? openUntrustedFile(directory, `${name}.partial`)
  if (descriptor === undefined) return false
  try {
    for (const stop of [...stops.filter((each) => each < until && each > digest.bytes), until]) {
      while (digest.bytes < stop) {
        const wanted = Math.min(chunkBytes, stop - digest.bytes)
        const { bytesRead, buffer } = await readAsync(descriptor, Buffer.allocUnsafe(wanted), 0, wanted, digest.bytes)
        if (bytesRead === 0) return false
        digest.add(buffer.subarray(0, bytesRead))
      }
      onMark(digest.mark())
    }
    return true
  } finally {
    closeSync(descriptor)
  }
}

/** The marks of a file at these lengths, as far as it has them. */
export async function readMarks(directory: string, name: string, lengths: number[]): Promise<Mark[]> {
  const marks: Mark[] = []
  const last = lengths.at(-1)
  if (last === undefined) return marks
  await digestFile(directory, name, new RunningDigest(), last, lengths, (mark) => marks.push(mark))
  return marks
}

/** The longest of these marks that the file still has, with the number of bytes 0 if it has none of them. */
export async function findLongestMatch(directory: string, name: string, expected: Mark[]): Promise<number> {
  const found = await readMarks(
    directory,
    name,
    expected.map(({ bytes }) => bytes),
  )
  const isFound = ({ bytes, sha256 }: Mark) => found.some((mark) => mark.bytes === bytes && mark.sha256 === sha256)
  return expected.findLast(isFound)?.bytes ?? 0
}
