// Unpacks layers while they arrive, so that compressed layers are never stored. A layer is verified against the digest of
// the compressed blob and against the digest of the tar.
import type { ChildProcess } from 'node:child_process'
import { createHash } from 'node:crypto'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { baseEnvironment, findCommand, spawnWithPipes } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { type Descriptor, verified } from './blob.ts'
import { decoderFor, isCodecError, peek } from './compression.ts'
import { ImageError, type ImageErrorCode } from './driver.ts'
import { freeSpaceGuard } from './free-space.ts'
import type { ImageLimits } from './limits.ts'

export interface LayerSize {
  files: number
  bytes: number
}

export interface UnpackOptions {
  /** An existing, empty directory. */
  directory: string
  packed: AsyncIterable<Buffer>
  descriptor: Descriptor
  /** The digest of the tar itself. */
  diffId: string
  limits: ImageLimits
  onBytes: (count: number) => void
  signal: AbortSignal
}

/** A tar header and extended headers take a few blocks for each file. */
const maxHeaderBytesPerFile = 4096
const maxOutputBytes = 16 * 1024
/** Errors of the pipe when the unpacker has exited; its exit code then says why. */
const brokenPipe = new Set(['EPIPE', 'ECONNRESET', 'ERR_STREAM_PREMATURE_CLOSE'])

export async function unpackLayer(options: UnpackOptions): Promise<LayerSize> {
  const { directory, packed, descriptor, limits, onBytes, signal } = options
  const received = { bytes: 0 }
  const stream = await peek(verified(packed, descriptor, received, onBytes))
  const unpacker = startUnpacker(directory, limits)
  const tar = tarGuard(options, received)
  const decoder = decoderFor(stream.head)
  const source = Readable.from(stream.all, { objectMode: true, highWaterMark: 4 })
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
    // A generator that was never started does not close its source by itself. A pending read ends with the connection.
    stream.close().catch(() => undefined)
  }
  return unpacker.ended
}

/** Reads a layer without unpacking it, and throws unless it has the digests it should have. */
export async function verifyLayer(options: UnpackOptions): Promise<void> {
  const { packed, descriptor, onBytes, signal } = options
  const received = { bytes: 0 }
  const stream = await peek(verified(packed, descriptor, received, onBytes))
  const decoder = decoderFor(stream.head)
  const source = Readable.from(stream.all, { objectMode: true, highWaterMark: 4 })
  const tar = tarGuard(options, received)
  try {
    if (decoder) await pipeline(source, decoder, tar, discard, { signal })
    else await pipeline(source, tar, discard, { signal })
  } catch (error) {
    throw decoder && isCodecError(error) ? new ImageError('damaged', 'A layer cannot be decompressed', error) : error
  } finally {
    stream.close().catch(() => undefined)
  }
}

async function discard(source: AsyncIterable<Buffer>): Promise<void> {
  for await (const _ of source);
}

/** Verifies the digest of the tar, and stops decompression bombs and tars that would fill the disk. */
function tarGuard({ diffId, directory, limits }: UnpackOptions, received: { bytes: number }) {
  return async function* tar(source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    const hash = createHash('sha256')
    const checkFreeSpace = freeSpaceGuard(directory, limits.reserveBytes)
    const maxBytes = limits.maxBytes + limits.maxFiles * maxHeaderBytesPerFile
    let bytes = 0
    for await (const chunk of source) {
      bytes += chunk.length
      if (bytes > maxBytes) throw new ImageError('too_large', `A layer has more than ${maxBytes} bytes`)
      if (bytes > limits.maxUnguardedBytes && bytes > received.bytes * limits.maxRatio)
        throw new ImageError('too_large', `A layer is more than ${limits.maxRatio} times larger when decompressed`)
      await checkFreeSpace(bytes)
      hash.update(chunk)
      yield chunk
    }
    if (`sha256:${hash.digest('hex')}` !== diffId)
      throw new ImageError('damaged', `A layer does not have the digest ${diffId} of its image's configuration`)
  }
}

/** The exit codes of unpack.pl for problems of the tar. */
const refusals: Record<number, ImageErrorCode> = {
  20: 'damaged',
  21: 'too_large',
  22: 'not_supported',
}

function startUnpacker(directory: string, limits: ImageLimits): { child: ChildProcess; ended: Promise<LayerSize> } {
  const numbers = [limits.maxFiles, limits.maxBytes].map(String)
  const command = [driverProgram('image/unpack.pl'), process.arch, directory, ...numbers]
  const child = spawnWithPipes(findCommand('perl')!, command, { env: baseEnvironment, cwd: '/' })
  const { promise: ended, resolve, reject } = Promise.withResolvers<LayerSize>()
  const output = { stdout: '', stderr: '' }
  for (const stream of ['stdout', 'stderr'] as const) {
    child[stream].on('data', (chunk: Buffer) => {
      output[stream] = `${output[stream]}${chunk}`.slice(-maxOutputBytes)
    })
  }
  // The exit code explains a broken pipe.
  child.stdin.on('error', () => undefined)
  child.on('error', reject)
  child.on('close', (code, signal) => {
    const reason = output.stderr.trim()
    const refusal = refusals[code ?? 0]
    const [files = 0, bytes = 0] = output.stdout.split(' ').map(Number)
    if (code === 0) resolve({ files, bytes })
    else if (refusal) reject(new ImageError(refusal, `The image cannot be unpacked: ${reason}`))
    else reject(new Error(`unpack a layer: exited with ${code ?? signal}: ${reason}`))
  })
  // Prevents an unhandled rejection when the unpacker fails before it is awaited.
  ended.catch(() => undefined)
  return { child, ended }
}
