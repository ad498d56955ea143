import { statfs } from 'node:fs/promises'
import { nearestExisting } from '../host/filesystem.ts'

export interface Space {
  totalBytes: number
  usedBytes: number
  /** The space that is left for ordinary users. */
  freeBytes: number
}

export async function measureSpace(path: string): Promise<Space> {
  const { blocks, bfree, bavail, bsize } = await statfs(nearestExisting(path))
  return { totalBytes: blocks * bsize, usedBytes: (blocks - bfree) * bsize, freeBytes: bavail * bsize }
}
