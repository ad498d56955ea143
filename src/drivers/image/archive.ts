// Reads an image from a tar on this host: an archive saved by Docker or an OCI tool, or a plain root filesystem. The kind
// is recognized by the files in it.
import { createHash } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { open, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { formatImageReference } from '../../model/image.ts'
import { temporaryPath } from '../host/atomic-file.ts'
import { digestOf, type ImageSource, readAll } from './blob.ts'
import { isCodecError, isCompressed, openPlain } from './compression.ts'
import { ImageError } from './driver.ts'
import { freeSpaceGuard } from './free-space.ts'
import { isObject, parseObject } from './json.ts'
import { asMissing, blobPath, findInIndex, openFile } from './layout.ts'
import type { ImageLimits } from './limits.ts'
import { indexTar, type TarEntry, type TarIndex } from './tar-index.ts'

const layerType = 'application/vnd.oci.image.layer.v1.tar'
const configType = 'application/vnd.oci.image.config.v1+json'

/** Opens an archive. A compressed one is decompressed into the directory `scratch` first. */
export async function archiveSource(
  file: string,
  scratch: string,
  limits: ImageLimits,
  signal: AbortSignal,
): Promise<ImageSource> {
  if (!isCompressed(await readHead(file))) return plainSource(file, limits, signal, async () => undefined)
  const plain = temporaryPath(scratch)
  const remove = () => rm(plain, { force: true })
  try {
    await decompress(file, plain, limits, signal)
    return { ...(await plainSource(plain, limits, signal, remove)), origin: originOf(file) }
  } catch (error) {
    await remove()
    throw error
  }
}

function originOf(file: string): string {
  return formatImageReference({ kind: 'tar', file })
}

async function readHead(file: string): Promise<Buffer> {
  const head = Buffer.alloc(4)
  const handle = await open(file).catch((error) => {
    throw asMissing(error, file)
  })
  try {
    const { bytesRead } = await handle.read(head, 0, 4, 0).catch((error) => {
      throw asMissing(error, file)
    })
    if (bytesRead < 4)
      throw new ImageError('damaged', `${file} is empty: name a tar with an image or a root filesystem`)
  } finally {
    await handle.close()
  }
  return head
}

async function decompress(file: string, to: string, limits: ImageLimits, signal: AbortSignal): Promise<void> {
  async function* bounded(source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    const checkFreeSpace = freeSpaceGuard(dirname(to), limits.reserveBytes)
    let bytes = 0
    for await (const chunk of source) {
      bytes += chunk.length
      if (bytes > limits.maxBytes) throw new ImageError('too_large', `${file} is larger than an image may be`)
      await checkFreeSpace(bytes)
      yield chunk
    }
  }
  try {
    await pipeline(
      Readable.from(await openPlain(openFile(file))),
      bounded,
      createWriteStream(to, { flags: 'wx', mode: 0o600 }),
      { signal },
    )
  } catch (error) {
    throw isCodecError(error) ? new ImageError('damaged', `${file} cannot be decompressed`, error) : error
  }
}

async function plainSource(
  file: string,
  limits: ImageLimits,
  signal: AbortSignal,
  close: () => Promise<void>,
): Promise<ImageSource> {
  const handle = await open(file)
  try {
    const entries = await indexTar(handle)
    const image = (await readDockerArchive(file, entries, limits)) ?? readLayoutArchive(file, entries, limits)
    const parts = image ?? (await readRootArchive(file, signal))
    return { ...parts, origin: originOf(file), mayReadBlob: async () => true, close }
  } finally {
    await handle.close()
  }
}

function openEntry(file: string, { start, size }: TarEntry): AsyncIterable<Buffer> {
  return size === 0 ? Readable.from([]) : openFile(file, { start, end: start + size - 1 })
}

async function readEntry(file: string, entry: TarEntry, limits: ImageLimits): Promise<Buffer> {
  if (entry.size > limits.maxManifestBytes)
    throw new ImageError('too_large', `A part of ${file} that describes the image is too large`)
  return readAll(openEntry(file, entry))
}

type ArchiveParts = Pick<ImageSource, 'readManifest' | 'openBlob'>

function missingPart(file: string, part: string): ImageError {
  return new ImageError('damaged', `${file} lacks ${part}: save the image again`)
}

/** Opens blobs by their digest in the manifest. */
function partsOf(
  file: string,
  readManifest: (digest?: string) => Promise<Buffer>,
  find: (digest: string) => TarEntry | undefined,
): ArchiveParts {
  return {
    readManifest,
    openBlob({ digest }) {
      const entry = find(digest)
      if (!entry) throw missingPart(file, digest)
      return openEntry(file, entry)
    },
  }
}

function readLayoutArchive(file: string, entries: TarIndex, limits: ImageLimits): ArchiveParts | undefined {
  const index = entries.get('index.json')
  if (!index || !entries.has('oci-layout')) return undefined
  const find = (digest: string) => entries.get(blobPath(digest))
  async function readManifest(digest?: string): Promise<Buffer> {
    const wanted = digest ?? findInIndex(await readEntry(file, index!, limits), undefined, limits)
    const entry = find(wanted)
    if (!entry) throw missingPart(file, wanted)
    return readEntry(file, entry, limits)
  }
  return partsOf(file, readManifest, find)
}

/** Reads the format of `docker save`. It has no OCI manifest, so one is made that depends only on the content. */
async function readDockerArchive(
  file: string,
  entries: TarIndex,
  limits: ImageLimits,
): Promise<ArchiveParts | undefined> {
  const found = entries.get('manifest.json')
  if (!found) return undefined
  const list = readSavedList(await readEntry(file, found, limits))
  if (!list) return undefined
  if (list.length !== 1)
    throw new ImageError('not_supported', `${file} contains ${list.length} images: save each one by itself`)
  const { Config, Layers } = list[0]!
  const find = (name: string) => {
    const entry = entries.get(name)
    if (!entry) throw missingPart(file, name)
    return entry
  }
  const layerEntries = Layers.map(find)
  const configEntry = find(Config)
  const config = await readEntry(file, configEntry, limits)
  const diffIds = diffIdsOf(config)
  const layers = Layers.map((name, index) => ({
    digest: digestByName(name) ?? diffIds[index] ?? '',
    entry: layerEntries[index]!,
  }))
  const blobs = new Map<string, TarEntry>([
    [digestOf(config), configEntry],
    ...layers.map(({ digest, entry }) => [digest, entry] as const),
  ])
  const descriptors = layers.map(({ digest, entry }) => ({ mediaType: layerType, digest, size: entry.size }))
  const manifest = makeManifest(config, descriptors)
  return partsOf(
    file,
    async () => manifest,
    (digest) => blobs.get(digest),
  )
}

function diffIdsOf(config: Buffer): string[] {
  const { rootfs } = parseObject(config, 'configuration')
  return isObject(rootfs) && Array.isArray(rootfs.diff_ids) ? rootfs.diff_ids.map(String) : []
}

interface SavedImage {
  Config: string
  Layers: string[]
}

function readSavedList(bytes: Buffer): SavedImage[] | undefined {
  try {
    const list: unknown = JSON.parse(bytes.toString())
    const isSaved = (value: unknown): value is SavedImage =>
      isObject(value) &&
      typeof value.Config === 'string' &&
      Array.isArray(value.Layers) &&
      value.Layers.every((name) => typeof name === 'string')
    return Array.isArray(list) && list.length > 0 && list.every(isSaved) ? list : undefined
  } catch {
    // A root filesystem may have a file of this name with any content.
    return undefined
  }
}

/** Newer archives store layers as they were pushed, possibly compressed, under the digest of the blob. */
function digestByName(name: string): string | undefined {
  const hex = /^blobs\/sha256\/([0-9a-f]{64})$/.exec(name)?.[1]
  return hex && `sha256:${hex}`
}

function makeManifest(config: Buffer, layers: { mediaType: string; digest: string; size: number }[]): Buffer {
  const descriptor = { mediaType: configType, digest: digestOf(config), size: config.length }
  return Buffer.from(JSON.stringify({ schemaVersion: 2, config: descriptor, layers }))
}

/** Treats the tar as the only layer of an image with an empty configuration. */
async function readRootArchive(file: string, signal: AbortSignal): Promise<ArchiveParts> {
  const hash = createHash('sha256')
  let size = 0
  for await (const chunk of openFile(file)) {
    signal.throwIfAborted()
    hash.update(chunk)
    size += chunk.length
  }
  const digest = `sha256:${hash.digest('hex')}`
  const config = Buffer.from(JSON.stringify({ rootfs: { type: 'layers', diff_ids: [digest] } }))
  const manifest = makeManifest(config, [{ mediaType: layerType, digest, size }])
  return {
    readManifest: async () => manifest,
    openBlob: (wanted) => (wanted.digest === digest ? openFile(file) : Readable.from([config])),
  }
}
