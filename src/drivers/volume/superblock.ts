import { closeSync, openSync, readSync } from 'node:fs'

export interface Superblock {
  blockSize: number
  blocks: number
  blocksFree: number
}

const superblockOffset = 1024
const magic = 0xef53

/** Reads the superblock of an ext4 image. While it is mounted, the number of free blocks is out of date. */
export function readSuperblock(image: string): Superblock {
  const bytes = Buffer.alloc(1024)
  const file = openSync(image, 'r')
  try {
    readSync(file, bytes, 0, bytes.length, superblockOffset)
  } finally {
    closeSync(file)
  }
  if (bytes.readUInt16LE(0x38) !== magic) throw new Error(`${image} holds no ext4 filesystem`)
  const wide = (low: number, high: number) => bytes.readUInt32LE(high) * 2 ** 32 + bytes.readUInt32LE(low)
  return {
    blockSize: 1024 << bytes.readUInt32LE(0x18),
    blocks: wide(0x04, 0x150),
    blocksFree: wide(0x0c, 0x158),
  }
}
