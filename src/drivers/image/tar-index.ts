// Lists the files of an uncompressed tar and where their contents lie, without reading the contents.
import type { FileHandle } from 'node:fs/promises'
import { ImageError } from './driver.ts'

export interface TarEntry {
  start: number
  size: number
}

export type TarIndex = Map<string, TarEntry>

const blockSize = 512
const windowSize = 256 * 1024
const maxNameBytes = 64 * 1024
/** More than any image archive has. A larger tar is a root filesystem, whose index is not needed. */
const maxEntries = 20_000

/** Reads the headers of the first entries, which are enough to recognize an image archive. */
export async function indexTar(handle: FileHandle): Promise<TarIndex> {
  const read = windowReader(handle)
  const entries: TarIndex = new Map()
  let longName: string | undefined
  for (let position = 0, count = 0; count < maxEntries; count++) {
    const header = await read(position, blockSize)
    if (header.length < blockSize || header[0] === 0) break
    if (!hasValidChecksum(header)) {
      if (count === 0) throw new ImageError('damaged', 'The file is neither a tar nor compressed by gzip or zstd')
      break
    }
    const type = header.toString('latin1', 156, 157)
    const size = readSize(header)
    if (!Number.isSafeInteger(size)) break
    const start = position + blockSize
    if (type === 'x' || type === 'L') {
      const text = (await read(start, Math.min(size, maxNameBytes))).toString()
      longName = type === 'L' ? text.replace(/\0.*$/s, '') : (/(?:^|\n)\d+ path=([^\n]*)\n/.exec(text)?.[1] ?? longName)
    } else if (type !== 'g' && type !== 'K') {
      if (type === '0' || type === '\0')
        entries.set((longName ?? nameOf(header)).replace(/^(?:\.?\/)+/, ''), { start, size })
      longName = undefined
    }
    position = start + Math.ceil(size / blockSize) * blockSize
  }
  return entries
}

/** Reads through a window, because headers of small files lie close together. */
function windowReader(handle: FileHandle): (position: number, length: number) => Promise<Buffer> {
  const window = { buffer: Buffer.alloc(windowSize), start: 0, length: 0 }
  return async (position, length) => {
    if (position < window.start || position + length > window.start + window.length) {
      window.start = position
      window.length = (await handle.read(window.buffer, 0, windowSize, position)).bytesRead
    }
    return window.buffer.subarray(position - window.start, Math.min(position - window.start + length, window.length))
  }
}

/** Recognizes a header by its checksum, which even the oldest tar formats have. */
function hasValidChecksum(header: Buffer): boolean {
  const blank = Buffer.from(header).fill(' ', 148, 156)
  return blank.reduce((sum, byte) => sum + byte, 0) === Number.parseInt(field(header, 148, 8).trim(), 8)
}

function nameOf(header: Buffer): string {
  const [name, prefix] = [field(header, 0, 100), field(header, 345, 155)]
  // The GNU format stores times where the ustar format stores the prefix of the name.
  return prefix !== '' && header.toString('latin1', 257, 263) === 'ustar\0' ? `${prefix}/${name}` : name
}

function field(header: Buffer, start: number, length: number): string {
  return header.toString('utf8', start, start + length).replace(/\0.*$/s, '')
}

/** Sizes are octal digits, or a big-endian number when the first bit is set. */
function readSize(header: Buffer): number {
  if ((header[124]! & 0x80) === 0) return Number.parseInt(field(header, 124, 12).trim() || '0', 8)
  return Number(header.readBigUInt64BE(128))
}
