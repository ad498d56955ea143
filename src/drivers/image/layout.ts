// Reads an image from a directory in the OCI image layout.
import { createReadStream, type ReadStream } from 'node:fs'
import { readFile, stat } from 'node:fs/promises'
import { formatImageReference, type ImageReference } from '../../model/image.ts'
import type { ImageSource } from './blob.ts'
import { ImageError } from './driver.ts'
import { isObject, parseObject } from './json.ts'
import type { ImageLimits } from './limits.ts'
import { choosePlatform } from './platform.ts'

const nameAnnotation = 'org.opencontainers.image.ref.name'

export function layoutSource(reference: Extract<ImageReference, { kind: 'layout' }>, limits: ImageLimits): ImageSource {
  const { directory, tag } = reference
  return {
    origin: formatImageReference({ kind: 'layout', directory }),
    mayReadBlob: async () => true,
    async readManifest(digest) {
      const wanted = digest ?? findInIndex(await readSmall(`${directory}/index.json`, limits), tag, limits)
      return readSmall(`${directory}/${blobPath(wanted)}`, limits)
    },
    openBlob: ({ digest }) => openFile(`${directory}/${blobPath(digest)}`),
    async close() {},
  }
}

export function blobPath(digest: string): string {
  return `blobs/${digest.replace(':', '/')}`
}

/** Returns the digest of the manifest with this tag; without a tag, of the one for this host. */
export function findInIndex(bytes: Buffer, tag: string | undefined, limits: ImageLimits): string {
  const { manifests } = parseObject(bytes, 'index')
  if (!Array.isArray(manifests)) throw new ImageError('damaged', 'The index of the image lists no manifests')
  const named = tag === undefined ? manifests : manifests.filter((entry) => nameOf(entry) === tag)
  if (named.length > 0) return choosePlatform(named, limits).digest
  const names = manifests.map(nameOf).filter((name) => name !== undefined)
  throw new ImageError(
    'not_found',
    `The layout has no image ${tag ?? ''}; it has ${names.slice(0, 10).join(', ') || 'none'}`,
  )
}

function nameOf(entry: unknown): string | undefined {
  const annotations = isObject(entry) && isObject(entry.annotations) ? entry.annotations : {}
  return typeof annotations[nameAnnotation] === 'string' ? annotations[nameAnnotation] : undefined
}

async function readSmall(file: string, limits: ImageLimits): Promise<Buffer> {
  try {
    const found = await stat(file)
    if (!found.isFile() || found.size > limits.maxManifestBytes)
      throw new ImageError('too_large', `${file} is too large`)
    return await readFile(file)
  } catch (error) {
    throw asMissing(error, file)
  }
}

export async function* openFile(file: string, range: { start?: number; end?: number } = {}): AsyncGenerator<Buffer> {
  const stream: ReadStream = createReadStream(file, { highWaterMark: 256 * 1024, ...range })
  try {
    yield* stream as AsyncIterable<Buffer>
  } catch (error) {
    throw asMissing(error, file)
  } finally {
    stream.destroy()
  }
}

/** Turns errors of opening a file into a "not found" for the user. */
export function asMissing(error: unknown, file: string): unknown {
  const { code } = error as NodeJS.ErrnoException
  if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'EISDIR' || code === 'EACCES')
    return new ImageError('not_found', `${file} cannot be read (${code}): check the path`, error)
  return error
}
