// File operations inside a box, each by a process of ours that has entered it: what a path means there, through whatever
// links, is for the kernel to say, and nothing outside can be meant.
import type { Writable } from 'node:stream'
import type { BoxDriver, BoxSpec } from '../driver.ts'
import { BoxHelper } from '../enter/helper.ts'

/** The words: an operation and what it takes, which box-file.pl says. */
export function startFileHelper(boxes: BoxDriver, spec: BoxSpec, ...words: string[]): BoxHelper {
  return new BoxHelper(boxes, spec, 'box/file/file.pl', words)
}

/** The body in pieces with their lengths in front and an empty one at the end, so that nothing cut off passes for whole. */
export async function pourInto(
  helper: BoxHelper,
  body: AsyncIterable<Buffer>,
  onPiece: () => void = () => {},
): Promise<void> {
  const { input } = helper
  for await (const piece of body) {
    onPiece()
    if (input.destroyed || piece.length === 0) continue
    const length = Buffer.alloc(4)
    length.writeUInt32BE(piece.length)
    input.cork()
    input.write(length)
    const isFree = input.write(piece)
    input.uncork()
    if (!isFree) await drained(input)
  }
  input.end(Buffer.alloc(4))
}

function drained(output: Writable): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      output.off('drain', done).off('close', done)
      resolve()
    }
    if (output.destroyed) resolve()
    else output.once('drain', done).once('close', done)
  })
}
