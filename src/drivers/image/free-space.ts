import { statfs } from 'node:fs/promises'
import { ImageError } from './driver.ts'

/** Throws when the filesystem of the directory has less free space than this. */
export async function requireFreeSpace(directory: string, neededBytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(directory)
  if (bavail * bsize >= neededBytes) return
  throw new ImageError('too_large', 'The disk does not have enough free space for the image: delete something first')
}

const bytesPerCheck = 64 * 2 ** 20

/** Returns a function that checks the free space again whenever another 64 MiB have been written. */
export function freeSpaceGuard(directory: string, reserveBytes: number): (writtenBytes: number) => Promise<void> {
  let nextCheck = 0
  return async (writtenBytes) => {
    if (writtenBytes < nextCheck) return
    await requireFreeSpace(directory, reserveBytes)
    nextCheck = writtenBytes + bytesPerCheck
  }
}
