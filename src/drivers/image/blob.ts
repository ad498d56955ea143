// Parts of images as streams of bytes that are verified while they are read.
import { createHash } from 'node:crypto'
import { isDigest } from '../../model/image.ts'
import { ImageError } from './driver.ts'
import { isObject } from './json.ts'

export interface Descriptor {
  digest: string
  size: number
}

/** Provides the parts of one image. Its answers are not verified. */
export interface ImageSource {
  /** Whom the bytes come from: the host of a registry, or a path of this host. */
  origin: string
  /** Reads the manifest with this digest, or else the one that the reference names. */
  readManifest(digest: string | undefined, signal: AbortSignal): Promise<Buffer>
  openBlob(descriptor: Descriptor, signal: AbortSignal): AsyncIterable<Buffer>
  /** Whether the origin lets this caller read the blob. Says nothing about the origin having it. */
  mayReadBlob(descriptor: Descriptor, signal: AbortSignal): Promise<boolean>
  close(): Promise<void>
}

export function digestOf(content: Buffer): string {
  return `sha256:${createHash('sha256').update(content).digest('hex')}`
}

export function readDescriptor(value: unknown): Descriptor {
  const { digest, size } = isObject(value) ? value : {}
  if (typeof digest !== 'string' || !Number.isSafeInteger(size) || (size as number) < 0)
    throw new ImageError('damaged', 'The manifest of the image has a part without a digest or size')
  if (!isDigest(digest))
    throw new ImageError(
      'not_supported',
      `The image has a digest that is not sha256: ${JSON.stringify(digest.slice(0, 100))}`,
    )
  return { digest, size: size as number }
}

export async function readAll(source: AsyncIterable<Buffer>): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of source) chunks.push(chunk)
  return Buffer.concat(chunks)
}

/** Passes the bytes on and throws when they do not match the descriptor. */
export async function* verified(
  source: AsyncIterable<Buffer>,
  { digest, size }: Descriptor,
  received = { bytes: 0 },
  onBytes: (count: number) => void = () => undefined,
): AsyncGenerator<Buffer> {
  const hash = createHash('sha256')
  for await (const chunk of source) {
    received.bytes += chunk.length
    if (received.bytes > size)
      throw new ImageError('damaged', `The blob ${digest} is longer than the ${size} bytes in its descriptor`)
    hash.update(chunk)
    onBytes(chunk.length)
    yield chunk
  }
  if (received.bytes < size)
    throw new ImageError('damaged', `The blob ${digest} has ${received.bytes} bytes instead of ${size}`)
  if (`sha256:${hash.digest('hex')}` !== digest)
    throw new ImageError('damaged', `The blob ${digest} does not match its digest: push the image again`)
}
