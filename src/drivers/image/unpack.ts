// A layer on its way from where it lies packed to its directory: counted, checked against both of its digests and
// unpacked while it arrives, so that nothing packed is ever kept.
import type { ChildProcess } from 'node:child_process'
import { createHash } from 'node:crypto'
import { statfs } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createGunzip, createZstdDecompress } from 'node:zlib'
import { baseEnvironment, findCommand, spawnWithPipes } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { ImageError } from './driver.ts'
import type { ImageLimits } from './limits.ts'

export interface Descriptor {
  digest: string
  size: number
}

export interface LayerSize {
  files: number
  bytes: number
}

export interface Unpacking {
  /** Exists and is empty. */
  directory: string
  packed: AsyncIterable<Buffer>
  descriptor: Descriptor
  /** The digest of the tar itself. */
  diffId: string
  limits: ImageLimits
  onBytes: (count: number) => void
  signal: AbortSignal
}

// Larger than what zlib takes by itself, so that fewer pieces go from hand to hand.
const chunkSize = 128 * 1024
const bytesPerLook = 64 * 2 ** 20
const maxWordBytes = 16 * 1024
/** How it looks when the program that unpacks has ended, which then says why. */
const brokenPipe = new Set(['EPIPE', 'ECONNRESET', 'ERR_STREAM_PREMATURE_CLOSE'])

export async function unpackLayer(unpacking: Unpacking): Promise<LayerSize> {
  const { directory, packed, descriptor, diffId, limits, onBytes, signal } = unpacking
  const arrived = { bytes: 0 }
  const first = await peek(checked(packed, descriptor, arrived, onBytes))
  const unpacker = startUnpacker(directory, limits)
  const tar = guarded(diffId, directory, limits, arrived)
  const decoder = decoderFor(first.head)
  const source = Readable.from(first.all, { objectMode: true, highWaterMark: 4 })
  const sink = unpacker.child.stdin!
  try {
    if (decoder) await pipeline(source, decoder, tar, sink, { signal })
    else await pipeline(source, tar, sink, { signal })
  } catch (error) {
    sink.destroy()
    if (!brokenPipe.has((error as NodeJS.ErrnoException).code ?? '')) {
      unpacker.child.kill('SIGKILL')
      await unpacker.ended.catch(() => undefined)
      throw decoder && isCodecError(error) ? new ImageError('damaged', 'A layer cannot be decompressed', error) : error
    }
    await unpacker.ended
    throw error
  } finally {
    // A reader that was never begun ends nothing by itself. What waits for the next bytes ends with the connection.
    first.end().catch(() => undefined)
  }
  return unpacker.ended
}

/** Hands on what arrives and ends with an error when it is not what the descriptor says. */
export async function* checked(
  source: AsyncIterable<Buffer>,
  { digest, size }: Descriptor,
  arrived = { bytes: 0 },
  onBytes: (count: number) => void = () => undefined,
): AsyncGenerator<Buffer> {
  const hash = createHash('sha256')
  for await (const chunk of source) {
    arrived.bytes += chunk.length
    if (arrived.bytes > size)
      throw new ImageError('damaged', `The blob ${digest} is longer than the ${size} bytes it was said to have`)
    hash.update(chunk)
    onBytes(chunk.length)
    yield chunk
  }
  if (arrived.bytes < size)
    throw new ImageError('damaged', `The blob ${digest} has ${arrived.bytes} bytes instead of ${size}`)
  if (`sha256:${hash.digest('hex')}` !== digest)
    throw new ImageError('damaged', `The blob ${digest} does not have this digest: push the image again`)
}

/** The tar: its digest, and whether it grows out of all proportion or fills the disk. */
function guarded(diffId: string, directory: string, limits: ImageLimits, arrived: { bytes: number }) {
  return async function* tar(source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    const hash = createHash('sha256')
    // A header of a few blocks for each file.
    const most = limits.maxBytes + limits.maxFiles * 4096
    let bytes = 0
    let nextLook = 0
    for await (const chunk of source) {
      bytes += chunk.length
      if (bytes > most) throw new ImageError('too_large', `A layer has more than ${most} bytes`)
      if (bytes > limits.maxUnguardedBytes && bytes > arrived.bytes * limits.maxRatio)
        throw new ImageError('too_large', `A layer becomes more than ${limits.maxRatio} times larger when unpacked`)
      if (bytes >= nextLook) {
        await refuseFullDisk(directory, limits.reserveBytes)
        nextLook = bytes + bytesPerLook
      }
      hash.update(chunk)
      yield chunk
    }
    if (`sha256:${hash.digest('hex')}` !== diffId)
      throw new ImageError('damaged', `A layer does not have the digest ${diffId} of its image's configuration`)
  }
}

export async function refuseFullDisk(directory: string, neededBytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(directory)
  if (bavail * bsize >= neededBytes) return
  throw new ImageError('too_large', 'There is not enough room on the disk for the image: delete something first')
}

/** By the first bytes, because media types are wrong at times. */
function decoderFor(head: Buffer) {
  if (head.readUInt16BE(0) === 0x1f8b) return createGunzip({ chunkSize })
  if (head.readUInt32LE(0) === 0xfd2fb528) return createZstdDecompress({ chunkSize })
  return undefined
}

export function isPacked(head: Buffer): boolean {
  return head.readUInt16BE(0) === 0x1f8b || head.readUInt32LE(0) === 0xfd2fb528
}

/** The plain bytes of what may be compressed. */
export async function openPlain(packed: AsyncIterable<Buffer>): Promise<AsyncIterable<Buffer>> {
  const { head, all } = await peek(packed)
  const decoder = decoderFor(head)
  if (!decoder) return all
  const source = Readable.from(all)
  source.on('error', (error) => decoder.destroy(error))
  return source.pipe(decoder)
}

export function isCodecError(error: unknown): boolean {
  const code = String((error as NodeJS.ErrnoException).code)
  return code.startsWith('Z_') || code.startsWith('ZSTD_') || code.startsWith('ERR_ZLIB')
}

interface Peeked {
  head: Buffer
  all: AsyncIterable<Buffer>
  end(): Promise<unknown>
}

/** The first four bytes, or zeros, and everything from the beginning on. */
async function peek(source: AsyncIterable<Buffer>): Promise<Peeked> {
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
  return { head, all: all(), end: async () => iterator.return?.() }
}

const refusals: Record<number, 'damaged' | 'too_large' | 'not_supported'> = {
  20: 'damaged',
  21: 'too_large',
  22: 'not_supported',
}

function startUnpacker(directory: string, limits: ImageLimits): { child: ChildProcess; ended: Promise<LayerSize> } {
  const numbers = [limits.maxFiles, limits.maxBytes].map(String)
  const command = [driverProgram('image/unpack.pl'), process.arch, directory, ...numbers]
  const child = spawnWithPipes(findCommand('perl')!, command, { env: baseEnvironment, cwd: '/' })
  const { promise: ended, resolve, reject } = Promise.withResolvers<LayerSize>()
  const words = { stdout: '', stderr: '' }
  for (const stream of ['stdout', 'stderr'] as const) {
    child[stream].on('data', (chunk: Buffer) => {
      words[stream] = `${words[stream]}${chunk}`.slice(-maxWordBytes)
    })
  }
  // Its exit code says what a broken pipe means.
  child.stdin.on('error', () => undefined)
  child.on('error', reject)
  child.on('close', (code, signal) => {
    const reason = words.stderr.trim()
    const refusal = refusals[code ?? 0]
    const [files = 0, bytes = 0] = words.stdout.split(' ').map(Number)
    if (code === 0) resolve({ files, bytes })
    else if (refusal) reject(new ImageError(refusal, `The image cannot be unpacked: ${reason}`))
    else reject(new Error(`unpack a layer: ended with ${code ?? signal}: ${reason}`))
  })
  // Whoever waits gets it; until then nobody may be there.
  ended.catch(() => undefined)
  return { child, ended }
}
