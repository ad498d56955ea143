import { Readable } from 'node:stream'
import { createGunzip, createZstdDecompress } from 'node:zlib'

// Larger than zlib's default, so that fewer chunks pass through the pipeline.
const chunkSize = 128 * 1024

const gzipMagic = 0x1f8b
const zstdMagic = 0xfd2fb528

/** Chooses a decoder by the first four bytes, because media types are sometimes wrong. */
export function decoderFor(head: Buffer) {
  if (isGzip(head)) return createGunzip({ chunkSize })
  if (isZstd(head)) return createZstdDecompress({ chunkSize })
  return undefined
}

export function isCompressed(head: Buffer): boolean {
  return isGzip(head) || isZstd(head)
}

function isGzip(head: Buffer): boolean {
  return head.readUInt16BE(0) === gzipMagic
}

function isZstd(head: Buffer): boolean {
  return head.readUInt32LE(0) === zstdMagic
}

/** Decompresses a stream if it is compressed. */
export async function openPlain(source: AsyncIterable<Buffer>): Promise<AsyncIterable<Buffer>> {
  const { head, all } = await peek(source)
  const decoder = decoderFor(head)
  if (!decoder) return all
  const readable = Readable.from(all)
  readable.on('error', (error) => decoder.destroy(error))
  return readable.pipe(decoder)
}

export function isCodecError(error: unknown): boolean {
  const code = String((error as NodeJS.ErrnoException).code)
  return code.startsWith('Z_') || code.startsWith('ZSTD_') || code.startsWith('ERR_ZLIB')
}

interface Peeked {
  /** The first four bytes, padded with zeros. */
  head: Buffer
  /** The whole stream, including the head. */
  all: AsyncIterable<Buffer>
  close(): Promise<unknown>
}

export async function peek(source: AsyncIterable<Buffer>): Promise<Peeked> {
  const iterator = source[Symbol.asyncIterator]()
  let start = Buffer.alloc(0)
  while (start.length < 4) {
    const next = await iterator.next()
    if (next.done) break
    start = Buffer.concat([start, next.value])
  }
  async function* all(): AsyncGenerator<Buffer> {
    try {
      if (start.length > 0) yield start
      for (let next = await iterator.next(); !next.done; next = await iterator.next()) yield next.value
    } finally {
      await iterator.return?.()
    }
  }
  const head = Buffer.concat([start.subarray(0, 4), Buffer.alloc(4)]).subarray(0, 4)
  return { head, all: all(), close: async () => iterator.return?.() }
}
